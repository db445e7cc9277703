"""Which of several controllers' answers `explain` shows."""

from __future__ import annotations

import pytest

from workers.cli.explain import best
from workers.explain.facts import Cause
from workers.explain.generic import Explained
from workers.queue.inspect import KeyState
from workers.queue.keys import Key

KEY = Key("changes", "d", "shop/data", "u1")
BOUND = Explained(Cause("bound", "It is bound.", is_problem=False), KeyState(KEY, 1.0))
RUNNING = Explained(
    Cause("running", "A worker is at it.", is_problem=False),
    KeyState(KEY, 1.0, lease=("host:1:x", 0.5)),
)
FAILED = Explained(Cause("driver-error", "It failed."))
NO_WORKER = Explained(Cause("no-worker", "Nobody runs it."))


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        pytest.param([BOUND, FAILED, RUNNING], FAILED, id="a problem first"),
        pytest.param([BOUND, RUNNING], RUNNING, id="then what is under way: a bound claim grows"),
        pytest.param([BOUND, NO_WORKER], BOUND, id="a controller that nobody runs says nothing"),
        pytest.param([NO_WORKER], NO_WORKER, id="but where it is the only one"),
    ],
)
def test_the_answer_that_matters_is_shown(found, shown):
    assert best(found) is shown
