"""DA-033: an attachment goes without its detach, at whatever moment of the attach.

The API server may answer with success to our finalizer and to a deletion that began before it
(kubernetes/kubernetes#77988): then the object is gone, and nobody else knows of the publish.
"""

from __future__ import annotations

import pytest

from tests.support.attach_world import FIN, AttachWorld
from workers.kube import paths

VA = "volumeattachments/pv1-node1"
PUBLISH = ("publish", "handle1", "nodeID1")
UNPUBLISH = ("unpublish", "handle1", "nodeID1")
REQUESTS = (
    ("get", VA),
    ("get", "persistentvolumes/pv1"),
    ("patch", "persistentvolumes/pv1"),
    ("get", "csinodes/node1"),
    ("patch", VA),
    ("patch", f"{VA}/status"),
)


def new_world() -> AttachWorld:
    world = AttachWorld()
    claim = {"name": "c", "namespace": "ns", "uid": "u"}
    world.add_volume(finalizers=None, claimRef=claim)
    return world


def drop(world: AttachWorld) -> None:
    world.api.drop(paths.ATTACHMENTS, "pv1-node1")


def test_these_are_all_requests_of_an_attach():
    world = new_world()
    world.run(world.add_attachment())
    assert [(one.verb, one.path) for one in world.api.requests] == list(REQUESTS)


@pytest.mark.parametrize(("verb", "path"), REQUESTS)
def test_nothing_stays_published_whenever_it_goes(verb, path):
    """Before each request; then the pass is repeated, as after any event."""
    world = new_world()
    key = world.add_attachment()
    world.api.before(verb, path, lambda: drop(world))
    world.run(key)
    world.run(key)
    assert world.calls in ([], [PUBLISH, UNPUBLISH])


def goes_while_published(world: AttachWorld, answer: dict[str, object]) -> str:
    def gone(_request):
        drop(world)
        return answer

    world.client.respond({"ControllerPublishVolume": [gone]})
    return str(world.run(world.add_attachment()).reason)


@pytest.mark.parametrize("answer", [{}, {"code": "DEADLINE_EXCEEDED", "message": "late"}])
def test_it_is_detached_whatever_the_publish_answered(answer):
    world = new_world()
    assert goes_while_published(world, answer) == "attachment went meanwhile"
    assert world.calls == [PUBLISH, UNPUBLISH]
    assert world.volume_finalizers() == [FIN]


@pytest.mark.parametrize("failures", [2, 3])
def test_the_detach_is_tried_three_times_and_then_told(failures):
    """Nothing could be retried later: the attachment is not there."""
    world = new_world()
    steps = [{"code": "UNAVAILABLE", "message": "boom"}] * failures
    world.client.respond({"ControllerUnpublishVolume": [*steps, {}]})
    goes_while_published(world, {})
    assert world.calls == [PUBLISH, *[UNPUBLISH] * 3]
    told = [one for one in world.events.seen if "may still be on its node: " in one[2]]
    assert len(told) == (failures == 3)
