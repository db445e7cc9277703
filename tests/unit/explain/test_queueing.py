"""What the queue's own history says about a waiting key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workers.explain.queueing import last_error, paused
from workers.observability import trail
from workers.queue.inspect import KeyState, Note, Pause
from workers.queue.keys import Key

ERROR = ["taken w:1", "error full", "failed 1 5000"]


@pytest.mark.parametrize(
    ("later", "stands"),
    [
        pytest.param([], True, id="nothing since"),
        pytest.param(["queued retry"], True, id="waits for its turn"),
        pytest.param(["taken w:1", "done"], False, id="done since"),
        pytest.param(["taken w:1", "released 5000"], False, id="polled since, without an error"),
        pytest.param(["taken w:1", "waits away", "released 500"], True, id="Redis was away"),
        pytest.param(["taken w:1", "blocked k", "released 0"], True, id="waited for another key"),
        pytest.param(["taken w:1"], True, id="under way"),
    ],
)
def test_an_error_stands_until_a_pass_gets_past_it(later, stands):
    """An answer that is polled must not show yesterday's error."""
    history = enumerate([*ERROR, *later])
    notes = [Note(float(at), *[*line.split(" ", 1), ""][:2]) for at, line in history]
    state = KeyState(Key("contents", "d", "c", "u"), now=99.0, trail=tuple(notes))
    assert (last_error(state, None) == ("full", 1.0)) is stands


def test_an_error_that_ends_its_pass_for_good_stands():
    """A claim whose class is missing is finished, and the error is the reason."""
    notes = (Note(0.0, "taken", "w:1"), Note(1.0, "error", "no class"), Note(2.0, "done", ""))
    state = KeyState(Key("claims", "d", "c", "u"), now=99.0, trail=notes)
    assert last_error(state, None) == ("no class", 1.0)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["cause first", "cause last"])
def test_of_one_pass_the_refusal_is_told_not_the_text_that_hides_it(order):
    """The Go sidecars' texts omit the cause; the missing permission is the cause."""
    errors = ("cannot get credentials", f"{trail.REFUSED}secrets is forbidden")
    notes = [Note(0.0, "taken", "w:1")]
    notes += [Note(1.0 + at, "error", errors[one]) for at, one in enumerate(order)]
    state = KeyState(Key("contents", "d", "c", "u"), now=99.0, trail=tuple(notes))
    assert last_error(state, None)[0] == errors[1]
    newer = (*notes, Note(4.0, "taken", "w:1"), Note(5.0, "error", "full"))
    assert last_error(replace(state, trail=newer), None) == ("full", 5.0)


@pytest.mark.parametrize(
    ("pause", "kind", "advice"),
    [
        ("operator", "claims", "csi-fleet resume --driver=ebs.example.org"),
        ("lease", "claims", "Remove the csi-provisioner sidecar"),
        ("lease", "attachments", "Remove the csi-attacher sidecar"),
        ("lease", "contents", "Remove the csi-snapshotter sidecar"),
    ],
)
def test_the_remedy_of_a_pause_is_the_one_that_works(pause, kind, advice):
    """`resume` has no effect on a node's queue or on the in-tree name of a class."""
    key = Key(kind, "ebs.example.org@node-1", "one", "u")
    found = paused(KeyState(key, now=9.0, pauses=(Pause(pause, "why", 0.0),)), "")
    assert advice in found.advice
    assert "@node-1" not in found.advice + found.text
