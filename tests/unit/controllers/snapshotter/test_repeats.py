"""An open call is repeated with its original request, whatever has changed (COR2-2, -6).

A driver that follows CSI answers a different request for a known name with ALREADY_EXISTS, and
makes a second snapshot for another name.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from tests.support.snapshot_world import CONTENT, CUT, DRIVER, UPLOADING, SnapshotWorld
from tests.unit.controllers.snapshotter.test_group_contents import MADE, dynamic_world, run
from workers.constants import ANN_SNAPSHOT_SECRET_NAME, ANN_SNAPSHOT_SECRET_NAMESPACE
from workers.controllers.snapshotter.settings import NameRule
from workers.kube import paths

AWAY, LATE, NO, OTHER = (
    {"code": code, "message": "no"}
    for code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "ALREADY_EXISTS")
)


def set_flags(world, **changes):
    for settings in (world.driver.settings.controllers, world.context.settings.controllers):
        settings["snapshotter"] = replace(settings["snapshotter"], **changes)


def annotate(world, **texts):
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, {"metadata": {"annotations": texts}})


CHANGES = {
    "class with other parameters": lambda w: w.add_class(parameters={"tier": "new"}),
    "class with an invalid parameter": lambda w: w.add_class(
        parameters={"csi.storage.k8s.io/unknown": "x"}
    ),
    "class deleted": lambda w: w.api.drop(paths.SNAPSHOT_CLASSES, "c1"),
    "class of another driver": lambda w: w.add_class(driver="other.test"),
    "--snapshot-name-prefix": lambda w: set_flags(w, snapshot_name=NameRule("other")),
    "--snapshot-name-uuid-length": lambda w: set_flags(w, snapshot_name=NameRule("snapshot", 1)),
    "--extra-create-metadata": lambda w: set_flags(w, extra_metadata=True),
}


@pytest.mark.parametrize(("first", "second"), [*permutations(CHANGES, 2)])
@pytest.mark.parametrize("answer", [AWAY, LATE], ids=["unavailable", "late"])
def test_the_same_request_after_any_two_changes(first, second, answer):
    world = SnapshotWorld()
    world.add_class(parameters={"tier": "old"})
    world.add_content()
    world.client.respond({"CreateSnapshot": [answer, answer, CUT]})
    world.run_content()
    CHANGES[first](world)
    world.run_content()
    CHANGES[second](world)
    world.run_content()
    requests = world.client.requests("CreateSnapshot")
    assert [dict(one.parameters) for one in requests] == [{"tier": "old"}] * 3
    assert len({one.name for one in requests}) == 1
    assert world.content()["status"]["readyToUse"] is True


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_look_at_a_snapshot_that_is_not_ready_repeats_its_request(change):
    """The poll is a CreateSnapshot of the same name; a different request may be refused forever."""
    world = SnapshotWorld()
    world.add_class(parameters={"tier": "old"})
    world.add_content()
    world.client.respond({"CreateSnapshot": [UPLOADING, UPLOADING, CUT]})
    for _ in range(3):
        world.run_content()
        world.add_class(parameters={"tier": "old"})
        change(world)
    requests = world.client.requests("CreateSnapshot")
    assert [dict(one.parameters) for one in requests] == [{"tier": "old"}] * 3
    assert len({one.name for one in requests}) == 1
    assert world.content()["status"]["readyToUse"] is True
    assert world.queue.marks == {}


def test_a_new_class_counts_once_the_call_has_ended():
    world = SnapshotWorld()
    world.add_class(parameters={"tier": "old"})
    world.add_content()
    world.client.respond({"CreateSnapshot": [AWAY, NO, CUT]})
    world.run_content()
    world.add_class(parameters={"tier": "new"})
    world.run_content()
    world.run_content()
    tiers = [one.parameters["tier"] for one in world.client.requests("CreateSnapshot")]
    assert tiers == ["old", "old", "new"]


@pytest.mark.parametrize("is_going", [False, True], ids=["wanted", "deleted"])
def test_a_driver_that_knows_the_name_is_asked_with_the_earlier_request(is_going):
    """CSI treats INTERNAL as an end, but a driver may return it after it made the snapshot."""
    world = SnapshotWorld()
    world.add_class(parameters={"tier": "old"})
    world.add_content()
    world.client.respond({"CreateSnapshot": [NO, OTHER, CUT, CUT]})
    world.run_content()
    world.add_class(parameters={"tier": "new"})
    world.run_content()
    if is_going:
        world.api.mark_deleted(paths.SNAPSHOT_CONTENTS, CONTENT)
    world.run_content()
    tiers = [one.parameters["tier"] for one in world.client.requests("CreateSnapshot")]
    assert tiers[:3] == ["old", "new", "old"]


def test_the_secret_is_that_of_the_first_request():
    world = SnapshotWorld()
    names = {ANN_SNAPSHOT_SECRET_NAME: "red", ANN_SNAPSHOT_SECRET_NAMESPACE: "ns"}
    for name in ("red", "blue"):
        world.api.add(
            paths.SECRETS,
            {"metadata": {"name": name, "namespace": "ns"}, "data": {"is": ""}},
        )
    world.add_content(metadata={"annotations": names})
    world.client.respond({"CreateSnapshot": [AWAY, CUT]})
    world.run_content()
    annotate(world, **{ANN_SNAPSHOT_SECRET_NAME: "blue"})
    world.api.drop(paths.SECRETS, "blue", "ns")
    world.run_content()
    assert world.content()["status"]["readyToUse"] is True


GROUP_CHANGES = {
    "class with other parameters": {"parameters": {"tier": "new"}},
    "class of another driver": {"driver": "other.test"},
    "--groupsnapshot-name-prefix": {"group_name": NameRule("other")},
    "--extra-create-metadata": {"extra_metadata": True},
}


@pytest.mark.parametrize("is_deleted", [False, True], ids=["wanted", "deleted"])
@pytest.mark.parametrize(("first", "second"), [*permutations(GROUP_CHANGES, 2)])
def test_a_group_is_asked_for_by_the_same_request_after_any_two_changes(first, second, is_deleted):
    """This holds as for a single snapshot; the group that the first call made is deleted."""
    world = dynamic_world(AWAY, LATE, MADE)
    old = {"metadata": {"name": "c"}, "driver": DRIVER, "deletionPolicy": "Delete"}
    world.api.add(paths.GROUP_SNAPSHOT_CLASSES, old | {"parameters": {"tier": "old"}})
    run(world)
    for change in (GROUP_CHANGES[first], GROUP_CHANGES[second]):
        if change.keys() & {"parameters", "driver"}:
            world.api.add(paths.GROUP_SNAPSHOT_CLASSES, old | change)
        else:
            set_flags(world, **change)
        if is_deleted and change is GROUP_CHANGES[second]:
            world.api.mark_deleted(paths.GROUP_SNAPSHOT_CONTENTS, "gc")
        world.passed += 60
        run(world)
    requests = world.client.requests("CreateVolumeGroupSnapshot")
    assert len(requests) == 3
    assert {(one.name, *dict(one.parameters).items()) for one in requests} == {
        (requests[0].name, ("tier", "old"))
    }
