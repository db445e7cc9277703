"""A content goes by force, at whatever moment of its creation: nothing stays in the storage."""

from __future__ import annotations

import pytest

from tests.support.snapshot_world import CONTENT, CUT, UPLOADING, SnapshotWorld
from workers.kube import paths

REQUESTS = 5


def new_world(answer):
    world = SnapshotWorld()
    world.client.respond({"CreateSnapshot": [answer], "DeleteSnapshot": [{}]})
    world.add_content()
    return world


def test_so_many_requests_has_a_creation():
    world = new_world(CUT)
    world.run_content()
    assert len(world.api.requests) == REQUESTS


@pytest.mark.parametrize("answer", [CUT, UPLOADING], ids=["ready", "uploading"])
@pytest.mark.parametrize("number", range(REQUESTS))
def test_no_snapshot_is_left_whenever_it_goes(number, answer, monkeypatch):
    """Before each request; then the pass is repeated, as after any event."""
    world = new_world(answer)
    reach = world.api._reach

    def counting(verb, path, body=None):
        if len(world.api.requests) == number:
            world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)
        reach(verb, path, body)

    monkeypatch.setattr(world.api, "_reach", counting)
    world.run_content()
    assert world.content() is None
    world.run_content()
    methods = world.client.methods
    assert methods.count("CreateSnapshot") <= methods.count("DeleteSnapshot")
