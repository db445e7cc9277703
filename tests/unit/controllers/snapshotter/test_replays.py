"""A key state that was valid once has no effect when it is written back later (SEC2-1)."""

from __future__ import annotations

from copy import deepcopy

import pytest

from tests.support.snapshot_world import CONTENT, CONTENT_KEY, CUT, DRIVER, SnapshotWorld
from workers.kube import paths
from workers.kube.errors import ForbiddenError, GoneError, Unreachable

LATE = {"code": "DEADLINE_EXCEEDED", "message": "late"}


def taken():
    """Return a world with a ready snapshot, and its earlier key states."""
    world = SnapshotWorld()
    world.add_content(spec={"deletionPolicy": "Retain"})
    world.client.respond({"CreateSnapshot": [LATE, CUT]})
    world.run_content()
    called = deepcopy(world.queue.marks[CONTENT_KEY.text])
    called["intent"] |= {"copy": False, "copied": False, "copy_uid": ""}  # as when the call began
    world.run_content()
    assert world.queue.marks == {}
    assert world.content()["status"]["readyToUse"] is True
    assert copies(world) == []
    answered = deepcopy(called)
    answered["intent"] |= {"handle": "sh", "deadline": []}
    world.client.calls.clear()
    return world, {"call": called, "answer": answered}


def copies(world):
    return [path for path in world.api.objects if "/configmaps/" in path]


def kept(world):
    """The administrator keeps the snapshot and deletes the objects."""
    world.api.drop(paths.SNAPSHOT_CONTENTS, CONTENT)


def handed_over(world):
    kept(world)
    spec = {"driver": DRIVER, "source": {"snapshotHandle": "sh"}}
    world.api.add(paths.SNAPSHOT_CONTENTS, {"metadata": {"name": "backup"}, "spec": spec})


def long_ago(world):
    kept(world)
    world.api.deleted.clear()


def too_old(world):
    kept(world)
    world.api.fail("watch", "volumesnapshotcontents", *[GoneError(410, "Expired", "old")] * 9)


def not_allowed(world):
    kept(world)
    world.api.fail("watch", "volumesnapshotcontents", *[ForbiddenError(403, "Forbidden", "no")] * 9)


def ready(world):
    """Change nothing."""


@pytest.mark.parametrize("which", ["call", "answer"])
@pytest.mark.parametrize("situation", [ready, kept, handed_over, long_ago, too_old, not_allowed])
def test_a_mark_put_back_deletes_nothing(situation, which):
    world, marks = taken()
    situation(world)
    for _ in range(3):
        world.queue.marks[CONTENT_KEY.text] = deepcopy(marks[which])
        assert world.run_content().action.value == "done"
        assert world.client.methods == []
        assert copies(world) == [], "a copy would prove that the call is open"
        assert world.queue.marks == {}, "an audit would judge no snapshot"


def test_no_copy_is_made_of_a_mark_that_cannot_be_judged():
    world, marks = taken()
    kept(world)
    world.queue.marks[CONTENT_KEY.text] = marks["call"]
    world.api.fail("watch", "volumesnapshotcontents", Unreachable("away"))
    with pytest.raises(Unreachable):
        world.run_content()
    assert (copies(world), world.client.methods) == ([], [])


@pytest.mark.parametrize("is_remembered", [True, False])
def test_what_an_open_call_left_is_deleted(is_remembered):
    """The object was removed by force: the API server's history shows that, or the copy does."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [LATE, CUT]})
    world.run_content()
    assert len(copies(world)) == 1
    kept(world)
    if is_remembered:
        for path in copies(world):
            del world.api.objects[path]
    else:
        world.api.deleted.clear()
    world.passed = 600
    assert world.run_content().reason == "cleaned up"
    assert world.client.methods[-1] == "DeleteSnapshot"
    assert (copies(world), world.queue.marks) == ([], {})


def test_a_snapshot_that_a_live_content_names_is_not_deleted_with_its_object():
    """The driver answers a content's last call with a snapshot that is in use."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [LATE, CUT]})
    world.run_content()
    kept(world)
    spec = {"driver": DRIVER, "source": {"snapshotHandle": "sh"}}
    world.api.add(paths.SNAPSHOT_CONTENTS, {"metadata": {"name": "backup"}, "spec": spec})
    world.passed = 600
    assert world.run_content().reason == "in use"
    assert "DeleteSnapshot" not in world.client.methods


def test_a_content_of_another_driver_may_have_the_same_handle():
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [LATE, CUT]})
    world.run_content()
    handed_over(world)
    other = world.api.of(paths.SNAPSHOT_CONTENTS, "backup")
    other["spec"]["driver"] = "other.example.org"
    world.api.add(paths.SNAPSHOT_CONTENTS, other)
    world.passed = 600
    assert world.run_content().reason == "cleaned up"


def test_a_copy_that_is_made_again_deletes_nothing():
    """The copy is restored from a backup, and the watcher adds the key of each copy."""
    world = SnapshotWorld()
    world.add_content()
    world.client.respond({"CreateSnapshot": [LATE, CUT]})
    world.run_content()
    (path,) = copies(world)
    backup = deepcopy(world.api.objects[path])
    world.run_content()
    assert copies(world) == []
    del backup["metadata"]["uid"]
    world.api.add(paths.CONFIG_MAPS, backup)
    long_ago(world)
    world.passed = 600
    world.client.calls.clear()
    assert world.run_content().action.value == "done"
    assert world.client.methods == []
