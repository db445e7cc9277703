"""Which of several controllers' answers `explain` shows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workers.cli.explaining import best, unseen
from workers.explain.facts import Cause
from workers.explain.generic import Explained
from workers.queue.inspect import KeyState
from workers.queue.keys import Key

FORBIDDEN = "watcher: pods is forbidden"
KEY = Key("changes", "d", "shop/data", "u1")
BOUND = Explained(Cause("bound", "It is bound.", is_problem=False), KeyState(KEY, 1.0))
RUNNING = Explained(
    Cause("running", "A worker is at it.", is_problem=False),
    KeyState(KEY, 1.0, lease=("host:1:x", 0.5)),
)
FAILED = Explained(Cause("driver-error", "It failed."))
NO_CONTENT = Cause("no-content", "It has no content yet.")
NO_WORKER = Explained(Cause("no-worker", "Nobody is alive."))


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        pytest.param([BOUND, FAILED, RUNNING], FAILED, id="a problem first"),
        pytest.param([BOUND, RUNNING], RUNNING, id="then what is under way: a bound claim grows"),
        pytest.param([BOUND, NO_WORKER], NO_WORKER, id="a claim to be grown, and no worker"),
    ],
)
def test_the_answer_that_matters_is_shown(found, shown):
    assert best(found) is shown


@pytest.mark.parametrize(
    ("code", "troubles", "is_told"),
    [
        pytest.param("not-queued", [FORBIDDEN], True, id="nobody saw it"),
        pytest.param("nothing-to-do", [FORBIDDEN], True, id="nobody knows of anything"),
        pytest.param("not-queued", [], False, id="nobody complains"),
        pytest.param("driver-error", [FORBIDDEN], False, id="the reason is known"),
        pytest.param("bound", [FORBIDDEN], False, id="all is well"),
    ],
)
def test_what_keeps_a_watcher_from_seeing_is_told_where_no_reason_is_known(code, troubles, is_told):
    """A missing permission to list belongs to no key, so no other output reports it."""
    alive = [SimpleNamespace(role="watcher")]
    presence = SimpleNamespace(troubles=lambda: troubles, alive=lambda: alive)
    cause = Cause(code, "It waits.", is_problem=False)
    found = unseen(SimpleNamespace(presence=presence), cause)
    assert (FORBIDDEN in found.text, found.is_problem) == (is_told, is_told)
    assert found.code == code


def test_a_watcher_that_is_gone_is_told_where_no_reason_is_known():
    """A snapshot that waits for its content depends on the watcher."""
    presence = SimpleNamespace(troubles=list, alive=list)
    found = unseen(SimpleNamespace(presence=presence), NO_CONTENT)
    assert "no watcher is running" in found.text
    assert found.advice.startswith("Start the watcher")
