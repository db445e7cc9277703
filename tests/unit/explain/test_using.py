"""Why a pod cannot use a bound claim, from the pod and its events; e2e/test_answers.py has more."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.memory_api import MemoryApi
from workers.explain import using
from workers.explain.commands import CSI_NODE
from workers.explain.facts import Cause
from workers.explain.generic import Explained
from workers.explain.moves import ADMIN, STORAGE, USER, move_of
from workers.kube import paths

BOUND = Cause("bound", "The claim is bound.", is_problem=False)
CLAIM = {
    "metadata": {"name": "data", "namespace": "shop", "uid": "u1"},
    "spec": {"volumeName": "pvc-1"},
    "status": {"phase": "Bound"},
}


def answer(
    *events,
    attach_error=None,
    node="n1",
    phase="Pending",
    message="",
    cause=BOUND,
    claim="data",
    going=False,
):
    api = MemoryApi()
    metadata = {"name": "web-0", "namespace": "shop", "uid": "p1"}
    if going:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    volume = {"name": "files", "persistentVolumeClaim": {"claimName": claim}}
    spec = {"volumes": [volume], **({"nodeName": node} if node else {})}
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    status = {"phase": phase, "conditions": [condition] if message else []}
    api.add(paths.PODS, {"metadata": metadata, "spec": spec, "status": status})
    for number, (reason, said) in enumerate(events):
        api.add(
            paths.EVENTS,
            {
                "metadata": {"name": f"e{number}", "namespace": "shop"},
                "involvedObject": {"uid": "p1"},
                "type": "Warning",
                "reason": reason,
                "message": said,
                "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
            },
        )
    if attach_error is not None:
        spec = {"nodeName": "n1", "source": {"persistentVolumeName": "pvc-1"}}
        status = {"attached": False, "attachError": {"message": attach_error}}
        api.add(paths.ATTACHMENTS, {"metadata": {"name": "va"}, "spec": spec, "status": status})
    tools = SimpleNamespace(kube=api.kube)
    return using.explain(tools, Explained(cause, claim=CLAIM), has_queue=False).cause


MOUNT = ("FailedMount", 'MountDevice failed for volume "pvc-1": mkfs failed')


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([MOUNT], "could not mount the volume for pod web-0: MountDevice failed"),
        ([("FailedMount", "unmounted volumes=[files]: timed out")], "could not mount the volume"),
        ([("FailedAttachVolume", 'AttachVolume failed for volume "pvc-1"')], "could not attach"),
        ([("FailedMount", "pvc-1: old"), MOUNT], "mkfs failed"),
    ],
)
def test_the_newest_event_about_the_volume(events, said):
    found = answer(*events)
    assert found.code == "not-mounted"
    assert said in found.text
    assert found.names == {"pod": "web-0", "node": "n1"}


@pytest.mark.parametrize(
    ("message", "move"),
    [
        ("3 node(s) had volume node affinity conflict", ADMIN),
        ("2 node(s) exceed max volume count", ADMIN),
        ("1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod", USER),
    ],
)
def test_a_pod_without_a_node(message, move):
    found = answer(node="", message=message)
    assert (found.code, move_of(found)) == ("not-scheduled", move)
    assert message in found.text


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"phase": "Running"}, id="it runs"),
        pytest.param({"going": True}, id="it is being deleted"),
        pytest.param({"claim": "logs"}, id="it uses another claim"),
        pytest.param({"node": "", "message": "0/1 nodes: Insufficient cpu"}, id="no CPU"),
        pytest.param({"node": "", "message": "unbound immediate PersistentVolumeClaims"}, id="pvc"),
    ],
)
def test_nothing_is_wrong_with_the_volume(changes):
    assert answer(MOUNT, **changes) is BOUND


def test_an_event_about_another_volume():
    assert answer(("FailedMount", 'SetUp failed for volume "config"')) is BOUND
    assert answer(("BackOff", "pvc-1")) is BOUND


def test_only_a_bound_claim_has_pods_to_look_at():
    cause = Cause("class-missing", "x")
    assert answer(MOUNT, cause=cause) is cause


def test_without_redis_the_attachment_reports_its_own_error():
    found = answer(attach_error="lun busy")
    assert (found.code, found.names["attachment"]) == ("not-attached", "va")
    assert found.text.endswith("where pod web-0 is waiting for it. lun busy")
    assert answer(attach_error="").text.endswith("is waiting for it.")


def test_what_kubelet_says_decides_who_acts():
    why = 'pvc-1: failed to find the secret key in the namespace ops with error: "key" not found'
    found = answer(("FailedMount", why))
    assert move_of(found) == ADMIN
    assert (found.names["secret"], found.names["secret_namespace"]) == ("key", "ops")
    why = "pvc-1: driver name d not found in the list of registered CSI drivers"
    found = answer(("FailedMount", why))
    assert (move_of(found), (found.templates or ())[0]) == (STORAGE, CSI_NODE)
