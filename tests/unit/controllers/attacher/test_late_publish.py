"""A publish that is sent after its attachment is gone: its worker was frozen before the call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.attach_world import LISTS, PUBLISHES, AttachWorld
from workers.controllers.attacher import names
from workers.kube import paths


class Frozen(AttachWorld):
    """A world whose first publish is sent `seconds` late; `meanwhile` happens before it."""

    def __init__(self, meanwhile, *, seconds=60.0, **options):
        super().__init__(**options)
        self.add_volume(finalizers=None)
        self.key, call = self.add_attachment(), self.client.call
        self.leases, make = [], self.lease

        def lease(key):
            self.leases.append(make(key))
            return self.leases[-1]

        def late(method, *args, **more):
            self.client.call = call
            self.passed += seconds
            meanwhile(self)
            answer = call(method, *args, **more)
            self.leases[0].is_lost = True
            return answer

        self.lease, self.client.call = lease, late

    def wake(self):
        """Run the frozen reconcile, then the one that follows its lost lease (orphan.lua)."""
        with pytest.raises(Exception, match="lost"):
            self.run(self.key)
        self.queue.marks.setdefault(self.key.text, dict(self.leases[0].mark))
        return self.run(self.key)

    def detached(self):
        """Let another worker detach the volume; the watcher then drops the key's state."""
        self.api.delete(paths.ATTACHMENTS.path("pv1-node1"))
        while not self.is_gone():
            self.passed += 60
            self.run(self.key)
        self.queue.marks.clear()

    @property
    def published(self):
        return {handle: set(nodes) for handle, nodes in self.client.published.items() if nodes}


@pytest.mark.parametrize("capabilities", [PUBLISHES, LISTS])
def test_a_late_publish_is_taken_back(capabilities):
    """COR2-8: The volume is unpublished again."""
    world = Frozen(Frozen.detached, capabilities=capabilities)
    assert world.wake().reason == "late publish undone"
    assert world.published == {}
    assert world.queue.marks == {}
    assert world.calls[-1] == ("unpublish", "handle1", "nodeID1")


def test_its_attachment_was_made_again_elsewhere():
    def again(world):
        world.detached()
        world.add_node("node2", "nodeID2")
        world.run(world.add_attachment(node="node2"))

    world = Frozen(again)
    assert world.wake().reason == "late publish undone"
    assert world.published == {"handle1": {"nodeID2"}}


def test_its_attachment_elsewhere_waits_for_it_unmarked():
    """No publish was recorded for the new attachment, so only its object names its node."""

    def again(world):
        world.detached()
        world.add_node("node2", "nodeID2")
        world.add_attachment(node="node2")

    world = Frozen(again)
    assert world.wake().reason == "late publish undone"
    assert world.published == {}


@pytest.mark.parametrize("is_attached", [False, True], ids=["begun", "attached"])
def test_a_live_attachment_of_the_same_volume_and_node_keeps_it(is_attached):
    def again(world):
        world.detached()
        key = world.add_attachment("another")
        if is_attached:
            world.run(key)

    world = Frozen(again)
    assert "another" in world.wake().reason
    assert world.published == {"handle1": {"nodeID1"}}
    assert world.queue.marks.get(world.key.text) is None


def test_another_pv_of_the_same_volume_keeps_it():
    def again(world):
        world.detached()
        world.add_volume("pv2", finalizers=None)
        source = {"persistentVolumeName": "pv2"}
        world.run(world.add_attachment("another", source=source))

    world = Frozen(again)
    assert "another" in world.wake().reason
    assert world.published == {"handle1": {"nodeID1"}}


def test_an_attachment_whose_pv_cannot_be_read_keeps_it():
    def again(world):
        world.detached()
        world.add_attachment("another", source={"persistentVolumeName": "gone"})

    assert "another" in Frozen(again).wake().reason


def test_it_waits_until_the_call_has_ended():
    world = Frozen(lambda world: world.api.drop(paths.ATTACHMENTS, "pv1-node1"), seconds=1.0)
    assert 0 < world.wake().delay_seconds < 60
    assert world.published == {"handle1": {"nodeID1"}}
    world.passed += 60
    assert world.run(world.key).reason == "late publish undone"
    assert world.published == {}


def test_a_driver_that_refuses_is_asked_again():
    world = Frozen(Frozen.detached)
    refused = {"ControllerUnpublishVolume": [{}, {"code": "UNAVAILABLE"}, {}]}
    world.client.respond(refused)
    world.wake()
    assert world.published == {"handle1": {"nodeID1"}}
    assert world.queue.marks, "it is not forgotten"
    assert world.run(world.key).reason == "late publish undone"
    assert world.published == {}


@pytest.mark.parametrize(
    "mark",
    [
        {},
        {"record": {"driver": "csi/test", "handle": "handle1", "node": "nodeID1"}},
        {"call": {"until": []}},
        {"call": {"until": []}, "record": {"handle": 7}},
        {"call": {"until": []}, "record": {"driver": "other", "handle": "h", "node": "n"}},
        {"call": {"until": []}, "record": {"driver": "csi/test", "handle": "handle1", "node": ""}},
    ],
)
def test_a_mark_without_an_open_call_of_this_driver_leads_to_nothing(mark):
    world = AttachWorld()
    world.add_volume()
    key = world.add_attachment()
    world.api.delete(paths.ATTACHMENTS.path("pv1-node1"))
    for kind in (names.ATTACHMENTS, names.DETACHMENTS, names.FORCED):
        one = replace(key, kind=kind)
        world.queue.marks[one.text] = mark
        assert world.run(one).reason == "attachment is gone"
    assert world.calls == []
