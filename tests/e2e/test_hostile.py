"""Drivers answer nonsense and objects reach their limits: an event says so, and nothing leaks."""

from __future__ import annotations

import re

import pytest

from csi_client import messages as csi
from tests.support.waiting import wait_until
from workers.constants import ANN_SELECTED_NODE, ANN_STORAGE_PROVISIONER

MIB = 2**20
BAD_TEXT = b"\xff\xfe not text"


def answer(**volume):
    return csi.CreateVolumeResponse(volume=csi.Volume(**volume))


def is_left(driver, claim):
    """Return True if the driver holds a volume for the claim."""
    name = f"pvc-{claim['metadata']['uid']}"
    return name in {one["name"] for one in driver.volumes().values()}


def wait_nothing_left(driver, claim, timeout_seconds=20):
    wait_until(lambda: not is_left(driver, claim), timeout_seconds, "nothing is left at the driver")


def context_of_bytes(value: bytes) -> bytes:
    """Return a response with a value in volume_context that is not UTF-8."""
    plain = answer(volume_id="v-bad", volume_context={"key": "x" * len(value)})
    return plain.SerializeToString().replace(b"x" * len(value), value)


UNUSABLE = [
    pytest.param(answer(volume_id=""), r"unusable volume\.volume_id", id="empty volume id"),
    pytest.param(csi.CreateVolumeResponse(), r"unusable volume \(missing", id="no volume"),
    pytest.param(
        answer(volume_id="v", capacity_bytes=-1), r"unusable volume\.capacity", id="negative"
    ),
    pytest.param(answer(volume_id="v", capacity_bytes=1), "less than requested", id="too small"),
    pytest.param(context_of_bytes(BAD_TEXT), "could not be decoded", id="non-UTF-8 context"),
    pytest.param(b"\x0a\xff\xff\xff\xff", "could not be decoded", id="no protobuf at all"),
    pytest.param(
        answer(volume_id="v", volume_context={"key": "x" * 5 * MIB}),
        r"unusable volume\.volume_context",
        id="5 MB context",
    ),
    pytest.param(
        answer(volume_id="v", volume_context={"key": "x" * 20 * MIB}),
        r"larger than max|too large|limit is",
        id="20 MB message",
    ),
    pytest.param(
        answer(volume_id="v", capacity_bytes=2**31, accessible_topology=[]).SerializeToString()[
            :-1
        ],
        "could not be decoded",
        id="truncated",
    ),
]


@pytest.mark.parametrize(("unusable", "text"), UNUSABLE)
def test_an_unusable_answer(fleet, driver, scene, unusable, text):
    """The claim gets an event, and the next good answer is used.

    Deleting the claim leaves nothing.
    """
    driver.answer_with("CreateVolume", unusable)
    claim = scene.claim("data", scene.storage_class(driver.name))
    event = wait_until(
        lambda: next(
            (
                one
                for one in scene.events("data")
                if one["type"] == "Warning" and re.search(text, one["message"])
            ),
            None,
        ),
        20,
        f"a warning with {text}",
    )
    assert event["reason"] == "ProvisioningFailed"
    assert scene.volume_of(claim) is None
    driver.set_rules()
    scene.wait_bound("data", timeout_seconds=40)
    scene.delete("data")
    scene.wait_gone()
    wait_nothing_left(driver, claim)


def test_an_unusable_answer_and_a_deleted_claim_leave_nothing(fleet, driver, scene):
    """The API server would always refuse the PV, so the volume is deleted.

    That does not depend on the claim.
    """
    before = len(driver.calls("DeleteVolume"))
    driver.answer_with(
        "CreateVolume", answer(volume_id="v", volume_context={"key": "x" * 5 * MIB}), skip_work=True
    )
    claim = scene.claim("data", scene.storage_class(driver.name))
    wait_until(lambda: len(driver.calls("DeleteVolume")) > before, 30, "the volume is deleted")
    assert driver.calls("DeleteVolume")[-1].volumes == ("v",)
    scene.delete("data")
    scene.wait_gone()
    driver.set_rules()
    assert scene.volume_of(claim) is None


def test_the_largest_capacity(fleet, driver, scene):
    driver.set_rules(
        {
            "method": "CreateVolume",
            "answer": {"volume": {"volume_id": "v-big", "capacity_bytes": str(2**63 - 1)}},
            "skip_work": True,
            "times": 1,
        }
    )
    claim = scene.claim("data", scene.storage_class(driver.name))
    scene.wait_bound("data")
    assert scene.volume_of(claim)["spec"]["capacity"] == {"storage": "9223372036854775807"}


def test_t089_d020_the_wrong_content_source_is_cleaned_up(fleet, driver, scene):
    """D-020: a volume whose content differs from the request is deleted and never used."""
    full = scene.storage_class(driver.name)
    source = scene.claim("source", full)
    scene.wait_bound("source")
    wrong = {"volume": {"volume_id": "somebody-elses"}}
    driver.set_rules(
        {
            "method": "CreateVolume",
            "times": 1,
            "answer": {
                "volume": {"volume_id": "v", "capacity_bytes": str(2**30), "content_source": wrong}
            },
            "skip_work": True,
        }
    )
    scene.claim("copy", full, dataSource={"kind": "PersistentVolumeClaim", "name": "source"})
    event = scene.wait_event("copy", "content source")
    assert "somebody-elses" in event["message"]
    scene.wait_bound("copy", timeout_seconds=30)
    assert "v" in {one for call in driver.calls("DeleteVolume") for one in call.volumes}
    assert source["metadata"]["uid"]


def test_a_response_after_the_deadline_is_one_volume(fleet, driver, scene):
    """The late answer is dropped, and the repeated call finds the same volume."""
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 4, "after_work": True, "times": 1})
    before = set(driver.volumes())
    scene.claim("data", scene.storage_class(driver.name))
    scene.wait_event("data", "context deadline exceeded")
    scene.wait_bound("data")
    assert len(set(driver.volumes()) - before) == 1


def test_objects_at_their_limits(fleet, driver, scene):
    """Names of 253 characters and annotations of 200 kB fit into Redis, ConfigMap, PV and event."""
    name = f"{'a' * 250}-0"
    full = scene.storage_class(
        driver.name,
        "x" * 200,
        parameters={f"key-{number}": "v" * 1000 for number in range(40)},
        mountOptions=["o" * 60] * 20,
    )
    driver.set_rules({"method": "CreateVolume", "code": "UNAVAILABLE", "times": 1})
    claim = scene.claim(
        name, full, metadata={"annotations": {f"note-{n}": "n" * 10_000 for n in range(20)}}
    )
    scene.wait_bound(name)
    wait_until(lambda: "ProvisioningSucceeded" in scene.reasons(name), 10, "event")
    sent = driver.calls("CreateVolume")[-1].request
    assert len(sent["parameters"]) == 40
    assert len(scene.volume_of(claim)["spec"]["mountOptions"]) == 20


def test_c008_a_missing_class_is_told_and_found_later(fleet, driver, scene):
    """P-803: the cluster's own controller writes the event; csi-fleet retries.

    It provisions once the class exists.
    """
    full = f"{scene.name}-late"
    scene.claim("data", full, metadata={"annotations": {ANN_STORAGE_PROVISIONER: driver.name}})
    wait_until(
        lambda: [one for one in scene.events("data", ours=False) if "not found" in one["message"]],
        30,
        "the claim tells about its class",
    )
    assert scene.reasons("data") == set()
    scene.storage_class(driver.name, "late")
    scene.wait_bound("data", timeout_seconds=30)


def test_a_class_replaced_while_a_call_may_run_leaks_nothing(fleet, driver, scene):
    """If another provisioner's class takes the name, the volume is still deleted with its claim."""
    driver.set_rules({"method": "CreateVolume", "code": "DEADLINE_EXCEEDED", "after_work": True})
    full = scene.storage_class(driver.name, "swap")
    claim = scene.claim("data", full)
    scene.wait_event("data", "DeadlineExceeded")
    scene.delete_class(full)
    scene.storage_class("other.csi.example.org", "swap")
    driver.set_rules()
    scene.delete("data")
    scene.delete_class(full)
    scene.storage_class(driver.name, "swap")
    wait_nothing_left(driver, claim, 60)
    wait_until(lambda: scene.volume_of(claim) is None, 20, "the PV is gone")


def test_c031_a_claim_re_created_under_its_name(fleet, driver, scene):
    """Each of the two claims gets its own volume; the deleted claim's volume is reclaimed."""
    driver.set_rules(
        {"method": "CreateVolume", "code": "DEADLINE_EXCEEDED", "after_work": True, "times": 1}
    )
    full = scene.storage_class(driver.name)
    old = scene.claim("data", full)
    scene.wait_event("data", "DeadlineExceeded")
    scene.delete("data")
    wait_until(lambda: scene.get("data") is None, 20, "the old claim is gone")
    young = scene.claim("data", full)
    scene.wait_bound("data")
    assert scene.volume_of(young)["spec"]["claimRef"]["uid"] == young["metadata"]["uid"]
    wait_nothing_left(driver, old, 40)
    wait_until(lambda: scene.volume_of(old) is None, 20, "the old claim's PV is gone")
    assert is_left(driver, young)


def test_c058_a_volume_of_that_name_for_another_claim(fleet, driver, scene):
    """The other claim's PV causes an event and stays; once it is gone, the new PV is saved."""
    full = scene.storage_class(driver.name, "late", volumeBindingMode="WaitForFirstConsumer")
    claim = scene.claim("data", full)
    name = f"pvc-{claim['metadata']['uid']}"
    scene.api.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": scene.namespace, "name": "somebody"},
                "csi": {"driver": "other.csi.example.org", "volumeHandle": "h"},
            },
        }
    )
    scene.annotate("data", **{ANN_SELECTED_NODE: "n1"})
    scene.wait_event("data", "already exists and belongs to another claim")
    assert scene.volume(name)["spec"]["csi"]["driver"] == "other.csi.example.org"
    scene.api.delete(f"/api/v1/persistentvolumes/{name}")
    scene.wait_bound("data", timeout_seconds=60)


def test_the_workers_lived_through_all_of_it(fleet, driver, scene):
    assert "Traceback" not in fleet.log_text()
    assert "restarting it" not in fleet.log_text()
    scene.claim("data", scene.storage_class(driver.name))
    scene.wait_bound("data")
