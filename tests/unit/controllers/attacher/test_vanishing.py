"""DA-033: An attachment vanishes without its detach, at any point of the attach.

The API server may accept csi-fleet's finalizer and still complete a deletion that began before it
(kubernetes/kubernetes#77988). Then the object is gone, and no other process knows of the publish.
"""

from __future__ import annotations

import pytest

from tests.support import fake_context
from tests.support.attach_world import FIN, AttachWorld
from workers.controllers.attacher import attach, detach
from workers.engine.passes import longest_pass
from workers.errors import DriverAway, LeaseLost, QueueUnavailable
from workers.kube import paths
from workers.kube.errors import ForbiddenError, NotFoundError, ServerError

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
LATE = {"code": "DEADLINE_EXCEEDED", "message": "late"}
AWAY = DriverAway("the connection broke")


class Clock:
    """A fake of the module `time` for the attacher; only sleeping advances it."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    found = Clock()
    for module in (fake_context, detach, attach):
        monkeypatch.setattr(module, "time", found)
    return found


def new_world(timeout_seconds: float = 15.0) -> AttachWorld:
    world = AttachWorld(timeout_seconds=timeout_seconds)
    claim = {"name": "c", "namespace": "ns", "uid": "u"}
    world.add_volume(finalizers=None, claimRef=claim)
    return world


def drop(world: AttachWorld) -> None:
    """Drop the object; the watcher drops the key's state."""
    world.api.drop(paths.ATTACHMENTS, "pv1-node1")
    world.queue.marks.clear()


def test_these_are_all_requests_of_an_attach():
    world = new_world()
    world.run(world.add_attachment())
    assert [(one.verb, one.path) for one in world.api.requests] == list(REQUESTS)


@pytest.mark.parametrize(("verb", "path"), REQUESTS)
def test_nothing_stays_published_whenever_it_goes(verb, path):
    """DA-033: It vanishes before a request.

    Then the key is reconciled again, as after any event.
    """
    world = new_world()
    key = world.add_attachment()
    world.api.before(verb, path, lambda: drop(world))
    world.run(key)
    world.run(key)
    assert world.calls in ([], [PUBLISH, UNPUBLISH])


def goes_while_published(world: AttachWorld, answer: object) -> str:
    def gone(_request):
        drop(world)
        return answer

    world.client.respond({"ControllerPublishVolume": [gone]})
    return str(world.run(world.add_attachment()).reason)


@pytest.mark.parametrize("answer", [{}, LATE, AWAY], ids=str)
def test_it_is_detached_whatever_the_publish_answered(answer):
    world = new_world()
    assert goes_while_published(world, answer) == "attachment went meanwhile"
    assert world.calls == [PUBLISH, UNPUBLISH]
    assert world.volume_finalizers() == [FIN]
    assert world.queue.marks == {}


def test_nothing_more_is_asked_once_others_own_the_key():
    """The client raises this if the Lease was lost to a Go sidecar during the call."""
    world = new_world()
    with pytest.raises(LeaseLost):
        goes_while_published(world, LeaseLost("others may work now"))
    assert world.calls == [PUBLISH]


@pytest.mark.parametrize("failures", [4, 5])
def test_the_detach_is_tried_five_times_and_then_told(failures):
    """A later retry is impossible, because the attachment is gone."""
    world = new_world()
    steps = [{"code": "UNAVAILABLE", "message": "boom"}] * failures
    world.client.respond({"ControllerUnpublishVolume": [*steps, {}]})
    goes_while_published(world, {})
    assert world.calls == [PUBLISH, *[UNPUBLISH] * 5]
    told = [one for one in world.events.seen if "may still be attached to its node: " in one[2]]
    assert len(told) == (failures == 5)
    assert world.queue.marks == {}


@pytest.mark.parametrize(("timeout_seconds", "tries"), [(15.0, 5), (300.0, 1), (3600.0, 1)])
@pytest.mark.parametrize("answer", [LATE, AWAY], ids=str)
def test_a_driver_that_hangs_holds_no_pass_for_too_long(clock, answer, timeout_seconds, tries):
    """MA-016: The driver isn't called either while a publish with unknown outcome may run."""
    world = new_world(timeout_seconds)
    begun: list[float] = []

    def hangs(_request):
        begun.append(clock.now)
        clock.now += timeout_seconds
        return LATE

    world.client.respond({"ControllerUnpublishVolume": [hangs]})
    start = clock.now
    goes_while_published(world, answer)
    assert len(begun) == tries
    assert (begun[0] > start + timeout_seconds) is (answer is AWAY)
    assert clock.now - start + timeout_seconds <= longest_pass(timeout_seconds)


def test_no_try_begins_after_two_minutes(clock):
    """A try may begin exactly then: `longest_pass` allows for it."""
    world = new_world(timeout_seconds=119.0)
    begun: list[float] = []

    def hangs(_request):
        begun.append(clock.now - Clock.now)
        clock.now += 119.0
        return LATE

    world.client.respond({"ControllerUnpublishVolume": [hangs]})
    goes_while_published(world, {})
    assert begun == [0, 120]


@pytest.mark.parametrize("answer", [{}, LATE], ids=str)
def test_an_answered_publish_is_given_no_time(clock, answer):
    """MA-016: Its outcome is known, although the watcher has not dropped its record yet."""
    world = new_world()
    begun: list[float] = []

    def gone(_request):
        world.api.drop(paths.ATTACHMENTS, "pv1-node1")
        return answer

    def unpublish(_request):
        begun.append(clock.now - Clock.now)
        return {}

    steps = {"ControllerPublishVolume": [gone], "ControllerUnpublishVolume": [unpublish]}
    world.client.respond(steps)
    world.run(world.add_attachment())
    assert begun == [0]
    assert world.queue.marks == {}


REFUSALS = (ServerError(500, "", "etcd"), ForbiddenError(403, "Forbidden", "no"))


@pytest.mark.parametrize("error", REFUSALS, ids=str)
@pytest.mark.parametrize(
    ("verb", "path"), [("patch", f"{VA}/status"), ("get", "persistentvolumes")]
)
def test_a_request_that_fails_beside_it_hides_nothing(verb, path, error):
    """Either the status cannot be written, or the volume cannot be read."""
    world = new_world()

    def gone(_request):
        drop(world)
        world.api.fail(verb, path, error)
        return {}

    world.client.respond({"ControllerPublishVolume": [gone]})
    world.run(world.add_attachment())
    assert world.calls == [PUBLISH, UNPUBLISH]


@pytest.mark.parametrize("times", [1, 2, 100])
@pytest.mark.parametrize("answer", [{}, LATE], ids=str)
def test_redis_that_is_away_for_the_mark_hides_nothing(monkeypatch, answer, times):
    """The same holds if Redis is full: key state that the watcher dropped would be new data."""
    world = new_world()

    def gone(_request):
        drop(world)
        real, times_left = world.queue.mark, [times]

        def away(*_args):
            times_left[0] -= 1
            if times_left[0] == 0:
                monkeypatch.setattr(world.queue, "mark", real)
            raise QueueUnavailable("away")

        monkeypatch.setattr(world.queue, "mark", away)
        return answer

    world.client.respond({"ControllerPublishVolume": [gone]})
    world.run(world.add_attachment())
    assert world.calls == [PUBLISH, UNPUBLISH]
    assert world.queue.marks == {}


@pytest.mark.parametrize("answer", [{}, LATE, AWAY], ids=str)
def test_an_attachment_made_again_publishes_anew(answer):
    """The next attachment of that name may vanish before its publish.

    The volume must be detached then.
    """
    world = new_world()

    def replaced(_request):
        drop(world)
        world.add_attachment()
        return answer

    world.client.respond({"ControllerPublishVolume": [replaced]})
    world.run(world.add_attachment())
    assert world.calls == [PUBLISH, UNPUBLISH]


def test_a_404_that_is_not_about_the_attachment_takes_nothing_off():
    """A proxy, or an API server that is starting, may return it."""
    world = new_world()
    key = world.add_attachment(is_marked=True, attached=True)
    unserved = NotFoundError(404, "NotFound", "the server could not find the requested resource")

    def fails(_request):
        world.api.fail("patch", f"{VA}/status", unserved)
        world.api.fail("get", VA, unserved)
        return {}

    world.client.respond({"ControllerPublishVolume": [fails]})
    with pytest.raises(NotFoundError):
        world.force(key)
    assert world.calls == [PUBLISH]
