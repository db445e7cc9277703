"""If a content is removed by force during its creation, no snapshot is left in the storage.

A snapshot that was reported is the exception: it belongs to the user.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.support.fake_context import Death
from tests.support.snapshot_world import CONTENT, CUT, UPLOADING, SnapshotWorld
from workers.kube import paths
from workers.kube.errors import NotFoundError

REQUESTS, LATER_REQUESTS = 5, 3
BEFORE_UNMARKING = 5
NO_ANSWER = {"code": "UNAVAILABLE", "message": "x"}


def new_world(*answers):
    world = SnapshotWorld()
    world.client.respond({"CreateSnapshot": list(answers), "DeleteSnapshot": [{}]})
    world.add_content()
    return world


def drop(world):
    world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)


def replace(world):
    drop(world)
    world.add_content(metadata={"uid": "another"})


def before_request(number, world, happens, monkeypatch):
    """Call `happens` before the request of that number, counted from now."""
    reach, number = world.api._reach, len(world.api.requests) + number

    def counting(verb, path, body=None):
        if len(world.api.requests) == number:
            happens(world)
        reach(verb, path, body)

    monkeypatch.setattr(world.api, "_reach", counting)


def test_so_many_requests_have_a_creation_and_a_later_look():
    world = new_world(UPLOADING, CUT)
    world.run_content()
    assert len(world.api.requests) == REQUESTS
    world.run_content()
    assert len(world.api.requests) == REQUESTS + LATER_REQUESTS


@pytest.mark.parametrize("answer", [CUT, UPLOADING], ids=["ready", "uploading"])
@pytest.mark.parametrize("number", range(REQUESTS - 1))
def test_no_snapshot_is_left_whenever_it_goes(number, answer, monkeypatch):
    """The object is gone before any request but the last; by then the status has the handle.

    See test_reported_ones.py. The reconcile then runs again, as after an event.
    """
    world = new_world(answer)
    before_request(number, world, drop, monkeypatch)
    world.run_content()
    assert world.content() is None
    world.run_content()
    methods = world.client.methods
    assert methods.count("CreateSnapshot") <= methods.count("DeleteSnapshot")


@pytest.mark.parametrize("goes", [drop, replace])
@pytest.mark.parametrize("answer", [CUT, UPLOADING], ids=["ready", "uploading"])
@pytest.mark.parametrize(
    ("dies", "number"),
    [
        *((None, number) for number in range(LATER_REQUESTS)),
        # The announcement is still there. Before the first request no worker knows that the
        # snapshot is reported.
        *((BEFORE_UNMARKING, number) for number in range(1, LATER_REQUESTS + 1)),
    ],
)
def test_a_reported_snapshot_stays_whenever_its_content_goes(
    dies, number, answer, goes, monkeypatch
):
    """The content is gone, or a new content has its name, which gets its own snapshot."""
    world = new_world({"snapshot": {"snapshot_id": "sh"}}, answer)
    world.steps.dies_before = dies
    with suppress(Death):
        world.run_content()
    world.steps.dies_before = None
    assert world.content()["status"]["snapshotHandle"] == "sh"
    before_request(number, world, goes, monkeypatch)
    world.run_content()
    if goes is drop or number:
        assert "status" not in (world.content() or {})
    world.run_content()
    assert (world.content() is None) is (goes is drop)
    assert "DeleteSnapshot" not in world.client.methods
    assert goes is replace or world.queue.marks == {}


@pytest.mark.parametrize("answers", [[], [NO_ANSWER]], ids=["first call", "open call"])
@pytest.mark.parametrize(
    ("verb", "path"), [("get", CONTENT), ("patch", CONTENT), ("patch", f"{CONTENT}/status")]
)
def test_a_kind_that_is_not_served_for_a_moment_costs_no_snapshot(verb, path, answers):
    """While its CRD is replaced, a 404 proves nothing about the object, which is read again."""
    world = new_world(*answers, CUT)
    for _ in answers:
        world.run_content()
    error = NotFoundError(404, "NotFound", "the server could not find the requested resource")

    world.api.fail(verb, path, error)
    outcome = None
    with suppress(NotFoundError):  # the engine retries
        outcome = world.run_content()
    assert outcome is None or outcome.action.value == "retry"
    world.run_content()
    assert "DeleteSnapshot" not in world.client.methods
    assert world.content()["status"]["snapshotHandle"] == "sh"
    assert world.queue.marks == {}
