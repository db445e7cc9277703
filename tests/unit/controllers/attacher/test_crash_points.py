"""A process dies before each step of an attach, a detach and a finalizer's removal (MA-060).

A first run of each scenario counts the steps. Then the scenario runs once per step with a death
just before it, with and without the key states in Redis. The next owner finishes the work.
"""

from __future__ import annotations

from itertools import count

import pytest

from tests.support.attach_world import FIN, LISTS, AttachWorld
from tests.support.fake_context import Death
from workers.controllers.attacher import names
from workers.errors import LeaseLost
from workers.kube import paths
from workers.queue.keys import Key


def attach(world):
    world.add_volume(finalizers=["x"])
    return [world.add_attachment()]


def attach_again(world):
    world.add_volume()
    return [world.add_attachment(is_marked=True, node_id="old")]


def attach_after_a_failure(world):
    world.add_volume()
    world.client.respond({"ControllerPublishVolume": [{"code": "INTERNAL"}, {}]})
    return [world.add_attachment()]


def attach_after_an_abort(world):
    world.add_volume()
    world.client.respond({"ControllerPublishVolume": [{"code": "ABORTED"}, {}]})
    return [world.add_attachment()]


def attached_without_finalizer(world):
    world.add_volume()
    world.client.published = {"handle1": {"nodeID1"}}
    return [world.add_attachment(attached=True, node_id="nodeID1")]


def detach(world):
    world.add_volume()
    world.client.published = {"handle1": {"nodeID1"}}
    return [world.add_attachment(is_marked=True, attached=True, is_deleting=True)]


def detach_that_others_watch(world):
    world.add_volume()
    world.client.published = {"handle1": {"nodeID1"}}
    options = {"is_marked": True, "attached": True, "is_deleting": True}
    return [world.add_attachment(**options, finalizers=["x"])]


def detach_after_a_failure(world):
    world.client.respond({"ControllerUnpublishVolume": [{"code": "INTERNAL"}, {}]})
    return detach(world)


def volume_goes(world):
    world.add_volume(finalizers=[FIN])
    world.api.mark_deleted(paths.VOLUMES, "pv1")
    return [names.finalizer_key("csi/test", "pv1")]


def reconciled(world):
    world.add_volume()
    world.add_attachment(is_marked=True, attached=True)
    return [names.reconcile_key("csi/test")]


SCENARIOS = {
    one.__name__: one
    for one in (
        *(attach, attach_again, attach_after_a_failure, attach_after_an_abort),
        *(attached_without_finalizer, detach, detach_that_others_watch, detach_after_a_failure),
        *(volume_goes, reconciled),
    )
}


def live(world, keys):
    """Reconcile until no work is left, including the keys that a reconcile adds."""
    pending = list(keys)
    for _ in range(20):
        if not pending:
            return
        key = pending.pop(0)
        outcome = world.run(key)
        if outcome.action.value != "done":
            forget_calls(world)
            pending.append(key)
        pending += [Key.parse(text) for text, _ in world.queue.added]
        world.queue.added.clear()
    raise AssertionError("no end")


def forget_calls(world):
    """Let the deadline of a dead worker's call pass (MA-016)."""
    for mark in world.queue.marks.values():
        mark.pop("call", None)


def settled(world, scenario):
    """I-1, I-4, I-5: Check that status and driver agree, and that deleted objects are gone."""
    found = world.api.of(paths.ATTACHMENTS, "pv1-node1")
    nodes = world.client.published.get("handle1", set())
    if scenario == "volume_goes":
        assert world.api.of(paths.VOLUMES, "pv1") is None
    elif scenario.startswith("detach"):
        assert nodes == set()
        if scenario == "detach_that_others_watch":
            assert found["metadata"]["finalizers"] == ["x"]
        else:
            assert found is None
    else:
        assert nodes == {"nodeID1"}
        earlier = found["metadata"]["annotations"].get(names.EARLIER_IDS)
        assert earlier == ('["old"]' if scenario == "attach_again" else None)
        assert found["status"] == {"attached": True}
        assert FIN in found["metadata"]["finalizers"]
        assert FIN in world.volume_finalizers()


def lives(scenario):
    """Yield one world per step, whose owner died just before that step."""
    for effect in count():
        world = AttachWorld(capabilities=LISTS)
        keys = SCENARIOS[scenario](world)
        world.steps.dies_before = effect
        try:
            live(world, keys)
        except Death:
            world.steps.dies_before = None
            yield world, keys
        else:
            assert effect > 0
            return


@pytest.mark.parametrize("is_wiped", [False, True], ids=["marks kept", "TA-118 marks lost"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_death_before_each_effect(scenario, is_wiped):
    """I-6, MA-016, MA-051: The next owner reaches the same state as an owner that never died."""
    for world, keys in lives(scenario):
        if is_wiped:
            world.queue.marks.clear()
        live(world, keys)
        settled(world, scenario)


@pytest.mark.parametrize("scenario", ["attach", "attach_again", "attach_after_a_failure"])
def test_death_and_the_attachment_is_deleted_meanwhile(scenario):
    """I-1: It is gone only once the driver has the volume on no node.

    A publish may have been made.
    """
    for world, keys in lives(scenario):
        world.api.mark_deleted(paths.ATTACHMENTS, "pv1-node1")
        if world.api.of(paths.ATTACHMENTS, "pv1-node1") is not None:
            live(world, keys)
        assert world.is_gone()
        assert world.client.published.get("handle1", set()) == set()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_lost_lease_writes_nothing_more(scenario):
    """G9: The lease is checked right before each step, so only the new owner works."""
    for effect in count():
        world = AttachWorld(capabilities=LISTS)
        keys = SCENARIOS[scenario](world)
        world.steps.loses_before = effect
        try:
            live(world, keys)
        except LeaseLost:
            assert effects(world) <= effect
            continue
        assert effect > 0
        return


def effects(world):
    """Return the number of writes and driver calls."""
    calls = [one for one in world.client.methods if one != "ListVolumes"]
    return len(world.written) + len(calls)


def test_every_effect_was_met():
    """A new step must be added to a scenario."""
    met = set()
    for begin in SCENARIOS.values():
        world = AttachWorld(capabilities=LISTS)
        live(world, begin(world))
        met |= set(world.steps.reached)
    assert met == {
        *("protect-volume", "mark-attachment", "note-node", "record-call", "publish"),
        *("save-attached", "end-call", "save-attach-error", "note-failure", "keep-finalizer"),
        *("unpublish", "release-attachment", "save-detached", "save-detach-error"),
        *("release-volume", "add-forced"),
    }
