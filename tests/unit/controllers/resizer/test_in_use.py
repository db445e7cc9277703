"""Drivers that only expand offline, and how the users of a claim are found (section 11.5)."""

from __future__ import annotations

import pytest

from tests.support.resizer_world import NAME, NAMESPACE, NODE_PENDING, VOLUME, ResizerWorld
from workers.controllers.resizer.expansion import IN_USE_SECONDS
from workers.controllers.resizer.offline import uses
from workers.kube import paths
from workers.kube.errors import ForbiddenError

REFUSAL = (
    f"Unable to expand {NAMESPACE}/{NAME} because CSI driver csi/test only supports offline "
    "expansion and volume is currently in-use"
)


def marked(**settings):
    world = ResizerWorld(**settings)
    world.claim(2, 1)
    world.queue.marks[world.key.text] = {"in_use": True}
    return world


def looked_at_pods(world):
    return [one.path for one in world.api.requests if one.path.endswith("/pods")]


def attached(world, volume=VOLUME):
    source = {"persistentVolumeName": volume}
    spec = {"attacher": world.driver_name, "nodeName": "n1", "source": source}
    world.api.add(paths.ATTACHMENTS, {"metadata": {"name": f"va-{volume}"}, "spec": spec})


def test_tr100_a_refused_volume_in_use_is_not_asked_for_again():
    """R-080, R-082: Event, error and back-off follow; the status already says in progress."""
    world = marked()
    world.pod()
    outcome = world.run()
    assert (outcome.action.value, outcome.cap_seconds) == ("retry", IN_USE_SECONDS)
    assert world.sizes() == []
    assert world.messages() == [REFUSAL]
    assert "Resizing" in world.conditions()


def test_dr013_the_refusal_is_said_once():
    """DR-013: Each episode causes one event and one write."""
    world = marked()
    world.pod()
    for _ in range(5):
        world.run()
    assert world.messages() == [REFUSAL]
    assert world.status_writes() == 1


def test_tr101_tr109_without_a_pod_it_is_asked():
    """After a success the key's state is dropped."""
    world = marked()
    world.run()
    assert world.sizes() == [2]
    assert world.state().part == NODE_PENDING
    assert world.queue.marks == {}


def test_tr102_the_first_call_is_always_made():
    """R-083: Only the driver knows if it can expand a volume in use."""
    world = ResizerWorld()
    world.claim(2, 1)
    world.pod()
    world.run()
    assert world.sizes() == [2]


def test_tr103_tr110_without_the_flag_nobody_looks():
    """Pods are not requested at all."""
    world = marked(handles_in_use=False)
    world.pod()
    world.run()
    assert world.sizes() == [2]
    assert looked_at_pods(world) == []


def test_tr104_a_refusal_is_remembered():
    """R-050, R-051: The refusal is also shown like any final error."""
    world = ResizerWorld()
    world.answers({"code": "FAILED_PRECONDITION", "message": "published"})
    world.claim(2, 1)
    world.pod()
    outcome = world.run()
    assert outcome.cap_seconds == IN_USE_SECONDS
    assert world.queue.marks[world.key.text]["in_use"] is True
    assert "ControllerResizeError" in world.conditions()
    assert looked_at_pods(world) == []


def test_tr105_an_ended_pod_counts_no_more():
    """R-081: The end of its attachment adds the claim's key; otherwise a retry finds it."""
    world = marked()
    world.pod()
    world.run()
    world.pod(phase="Succeeded")
    world.run()
    assert world.sizes() == [2]


def test_tr106_one_of_two_pods_is_enough():
    world = marked()
    world.pod("one")
    world.pod("two")
    world.run()
    world.api.drop(paths.PODS, "one", NAMESPACE)
    world.run()
    assert world.sizes() == []


def test_tr107_a_generic_ephemeral_volume_is_a_use():
    """The claim's name is `<pod>-<volume>`; csi-resizer misses this use (DR-012)."""
    pod = {
        "metadata": {"name": "web"},
        "spec": {"volumes": [{"name": "v", "ephemeral": {}}, {"name": "other"}]},
        "status": {"phase": "Running"},
    }
    assert uses(pod, "web-v")
    assert not uses(pod, "web-other")


@pytest.mark.parametrize(
    ("phase", "expected"),
    [("Pending", True), ("Running", True), ("", True), ("Failed", False), ("Succeeded", False)],
)
def test_unscheduled_pods_count_and_ended_ones_do_not(phase, expected):
    """R-081: Only a pod in phase Failed or Succeeded does not count."""
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": NAME}}]
    pod = {"metadata": {"name": "p"}, "spec": {"volumes": volumes}, "status": {"phase": phase}}
    assert uses(pod, NAME) is expected
    assert not uses(pod, "other")


def test_tr108_an_attachment_is_a_use():
    """DR-012: The pod is gone, but the volume is still published."""
    world = marked()
    attached(world, "another")
    attached(world)
    world.run()
    assert world.sizes() == []
    world.api.drop(paths.ATTACHMENTS, f"va-{VOLUME}")
    world.run()
    assert world.sizes() == [2]


def test_without_the_right_to_attachments_the_pods_decide():
    """csi-resizer's own role does not have this permission."""
    world = marked()
    world.api.fail("get", "volumeattachments", ForbiddenError(403, "Forbidden", "no"))
    world.run()
    assert world.sizes() == [2]


def test_a_lowered_size_is_written_while_the_volume_is_in_use():
    """R-032, R-082: The refusal was a final answer."""
    world = ResizerWorld()
    world.answers({"code": "FAILED_PRECONDITION"}, {})
    world.claim(9, 3)
    world.pod()
    world.run()
    world.resize(4)
    world.run()
    assert (world.state().alloc, world.sizes()) == (4, [9])
    world.api.drop(paths.PODS, "user", NAMESPACE)
    world.run()
    assert world.sizes() == [9, 4]
