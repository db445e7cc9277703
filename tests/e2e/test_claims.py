"""Claims get volumes and give them back, even if calls fail or processes die (issue 3)."""

from __future__ import annotations

from tests.support.waiting import wait_until
from workers.constants import (
    ANN_DELETION_SECRET_NAME,
    ANN_PROVISIONED_BY,
    ANN_STORAGE_PROVISIONER,
    ATTR_IDENTITY,
    FINALIZER_VOLUME,
)

CLAIMS = 50


def assert_correct_volume(volume, claim, driver):
    """P-170, P-190: check each field that csi-provisioner sets in the PV for a default answer."""
    meta, spec = volume["metadata"], volume["spec"]
    assert meta["name"] == f"pvc-{claim['metadata']['uid']}" == claim["spec"]["volumeName"]
    assert meta["annotations"][ANN_PROVISIONED_BY] == driver.name
    assert meta["annotations"][ANN_DELETION_SECRET_NAME] == ""
    assert FINALIZER_VOLUME in meta["finalizers"]
    assert spec["claimRef"]["uid"] == claim["metadata"]["uid"]
    assert spec["claimRef"]["name"] == claim["metadata"]["name"]
    assert spec["capacity"] == {"storage": "1Gi"}
    assert spec["accessModes"] == ["ReadWriteOnce"]
    assert spec["persistentVolumeReclaimPolicy"] == "Delete"
    assert spec["storageClassName"] == claim["spec"]["storageClassName"]
    assert spec["volumeMode"] == "Filesystem"
    assert spec["csi"]["driver"] == driver.name
    assert spec["csi"]["volumeAttributes"][ATTR_IDENTITY].endswith(driver.name)
    assert spec["csi"]["volumeHandle"] in driver.volumes()


def assert_one_volume_each(driver, volumes):
    """Check that each volume has exactly one PV and that no calls overlapped."""
    handles = [one["spec"]["csi"]["volumeHandle"] for one in volumes]
    assert sorted(handles) == sorted(driver.volumes())
    assert driver.concurrent_calls() == []


def test_claims_of_two_drivers_are_bound_and_deleted(fleet, drivers, scene):
    classes = {driver.name: scene.storage_class(driver.name) for driver in drivers}
    foreign = scene.storage_class("foreign.csi.example.org")
    scene.claim("foreign", foreign)
    by_name = {}
    for number in range(CLAIMS):
        driver = drivers[number % 2]
        by_name[f"data-{number}"] = driver
        scene.claim(f"data-{number}", classes[driver.name])

    claims = scene.wait_bound(*by_name)
    volumes = {one["spec"]["claimRef"]["name"]: one for one in scene.volumes()}
    assert len(volumes) == CLAIMS
    for name, driver in by_name.items():
        assert_correct_volume(volumes[name], claims[name], driver)
    for driver in drivers:
        own = [one for one in volumes.values() if one["spec"]["csi"]["driver"] == driver.name]
        assert_one_volume_each(driver, own)
    uid = claims["data-0"]["metadata"]["uid"]
    wait_until(
        lambda: scene.reasons("data-0") >= {"Provisioning", "ProvisioningSucceeded"}, 10, "events"
    )
    messages = {one["reason"]: one["message"] for one in scene.events("data-0")}
    assert messages == {
        "Provisioning": "External provisioner is provisioning volume for claim "
        f'"{scene.namespace}/data-0"',
        "ProvisioningSucceeded": f"Successfully provisioned volume pvc-{uid}",
    }

    for name in by_name:
        scene.delete(name)
    scene.wait_gone()
    assert [driver.volumes() for driver in drivers] == [{}, {}]
    untouched = scene.get("foreign")
    assert untouched["status"]["phase"] == "Pending"
    assert scene.events("foreign") == []
    asked = {call.request.get("name", "") for driver in drivers for call in driver.calls()}
    assert f"pvc-{untouched['metadata']['uid']}" not in asked


def test_a_failure_is_told_on_the_claim_and_retried(fleet, driver, scene):
    driver.set_rules(
        {"method": "CreateVolume", "code": "INTERNAL", "message": "disk on fire", "times": 1}
    )
    scene.claim("data", scene.storage_class(driver.name))
    scene.wait_bound("data")
    event = scene.wait_event("data", "disk on fire")
    assert (event["type"], event["reason"]) == ("Warning", "ProvisioningFailed")
    assert event["message"] == "rpc error: code = Internal desc = disk on fire"


def test_t065_late_binding_waits_for_the_selected_node(fleet, driver, scene):
    """L-022 rows 6 and 7: nothing happens before the scheduler selects a node."""
    late = scene.storage_class(driver.name, "late", volumeBindingMode="WaitForFirstConsumer")
    scene.claim("late", late)
    # Once a later claim is bound, the worker has seen the earlier claim too.
    scene.claim("now", scene.storage_class(driver.name, "now"))
    scene.wait_bound("now")
    scene.annotate("late", **{ANN_STORAGE_PROVISIONER: driver.name})
    scene.claim("now2", f"{scene.name}-now")
    scene.wait_bound("now2")
    assert scene.volume_of(scene.get("late")) is None
    assert scene.reasons("late") == set()

    scene.select_node("late", "some-node")
    scene.wait_bound("late")


def test_t056_deadline_then_success_repeats_the_name(fleet, driver, scene):
    """P-410, P-411, P-413: with --timeout=3s, the second call has the name of the first."""
    driver.set_rules({"method": "CreateVolume", "hang": True, "times": 1})
    claim = scene.claim("data", scene.storage_class(driver.name))
    scene.wait_bound("data")
    name = f"pvc-{claim['metadata']['uid']}"
    calls = [one for one in driver.calls("CreateVolume") if one.request["name"] == name]
    assert len(calls) == 2
    event = scene.wait_event("data", "DeadlineExceeded")
    assert event["message"] == "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    assert event.get("count", 1) == 1


def test_t060_the_call_ends_at_the_timeout(fleet, driver, scene):
    """P-413: the driver sees that its client has gone after --timeout, not before."""
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 5, "times": 1})
    claim = scene.claim("data", scene.storage_class(driver.name))
    scene.wait_bound("data")
    name = f"pvc-{claim['metadata']['uid']}"
    first, *_ = (one for one in driver.calls("CreateVolume") if one.request["name"] == name)
    second = [one for one in driver.calls("CreateVolume") if one.request["name"] == name][1]
    # Seconds between the two starts: the timeout of 3, the first back-off of 1, and slack.
    assert 3.9 < second.started_at - first.started_at < 8
    scene.wait_event("data", "context deadline exceeded")
    # Wait before deleting the claim: a driver that continues after its client left would create the
    # volume again.
    wait_until(
        lambda: all(
            one.ended_at for one in driver.calls("CreateVolume") if one.request["name"] == name
        ),
        10,
        "both calls end",
    )


def test_t057_a_claim_deleted_in_background_is_finished_and_reclaimed(fleet, driver, scene):
    """P-401: the volume that may exist gets its PV, is released and deleted, so nothing leaks."""
    driver.set_rules(
        {"method": "CreateVolume", "code": "DEADLINE_EXCEEDED", "after_work": True, "times": 2}
    )
    claim = scene.claim("data", scene.storage_class(driver.name))
    scene.wait_event("data", "DeadlineExceeded")
    scene.delete("data")
    wait_until(lambda: scene.get("data") is None, 20, "claim is gone")
    name = f"pvc-{claim['metadata']['uid']}"
    wait_until(
        lambda: name not in {one["name"] for one in driver.volumes().values()},
        40,
        "the volume is deleted at the driver",
    )
    wait_until(lambda: scene.volume_of(claim) is None, 20, "the PV is gone")


def test_t058_a_claim_deleted_after_a_final_error_is_dropped(fleet, driver, scene):
    """P-400: the driver gets at most one further call after the deletion."""
    driver.set_rules({"method": "CreateVolume", "code": "INTERNAL"})
    claim = scene.claim("data", scene.storage_class(driver.name))
    scene.wait_event("data", "Internal")
    name = f"pvc-{claim['metadata']['uid']}"

    def calls():
        return [one for one in driver.calls("CreateVolume") if one.request["name"] == name]

    before = len(calls())
    scene.delete("data")
    wait_until(lambda: scene.get("data") is None, 20, "claim is gone")
    # The other claim's retries take longer than this claim's back-off of 1 + 2 seconds.
    scene.claim("other", f"{scene.name}-{driver.name}")
    wait_until(
        lambda: len([c for c in driver.calls("CreateVolume") if c.request["name"] != name]) >= 3,
        30,
        "three calls for the other claim",
    )
    assert len(calls()) <= before + 2
    assert scene.volume_of(claim) is None


def test_t059_an_infeasible_request_waits_until_its_class_is_replaced(fleet, driver, scene):
    """P-414, C-044, C-045: no change of the claim causes a call until its class is replaced."""
    driver.set_rules({"method": "CreateVolume", "code": "INVALID_ARGUMENT", "message": "no such"})
    full = scene.storage_class(driver.name, "picky")
    claim = scene.claim("data", full)
    name = f"pvc-{claim['metadata']['uid']}"
    event = scene.wait_event("data", "infeasible")
    assert event["message"] == (
        "Volume provisioning failed with infeasible error. Retries will be delayed. "
        "rpc error: code = InvalidArgument desc = no such"
    )
    for value in ("one", "two", "three"):
        scene.annotate("data", note=value)
        marker = f"marker-{value}"
        driver.set_rules(
            {"method": "CreateVolume", "match": name, "code": "INVALID_ARGUMENT", "message": "no"}
        )
        scene.claim(marker, scene.storage_class(driver.name, marker))
        scene.wait_bound(marker)
    calls = [one for one in driver.calls("CreateVolume") if one.request["name"] == name]
    assert len(calls) == 1

    driver.set_rules()
    scene.delete_class(full)
    scene.storage_class(driver.name, "picky")
    scene.wait_bound("data", timeout_seconds=20)


def test_t169_a_failed_deletion_is_told_on_the_volume_and_retried(fleet, driver, scene):
    """P-515: if DeleteVolume returns NOT_FOUND, that is an error like any other."""
    claim = scene.claim("data", scene.storage_class(driver.name))
    scene.wait_bound("data")
    driver.set_rules({"method": "DeleteVolume", "code": "NOT_FOUND", "message": "who?", "times": 2})
    name = f"pvc-{claim['metadata']['uid']}"
    scene.delete("data")
    wait_until(lambda: scene.volume(name) is None, 30, "volume is gone")
    events = scene.api.events_of("default", name)
    assert {(one["type"], one["reason"], one["message"]) for one in events} == {
        ("Warning", "VolumeFailedDelete", "rpc error: code = NotFound desc = who?")
    }
    assert sum(one.get("count", 1) for one in events) == 2


def test_one_dead_storage_of_a_driver_holds_back_no_claim_of_another(fleet, drivers, scene):
    """BUG-9: the storage `east` holds the volumes whose UID begins with 0 to 7."""
    driver = drivers[0]
    east = {"method": "CreateVolume", "match": "pvc-[0-7]*", "code": "UNAVAILABLE"}
    driver.set_rules({**east, "message": "storage east does not answer"})
    storage_class = scene.storage_class(driver.name)

    def is_east(claim):
        return claim["metadata"]["uid"][0] in "01234567"

    def refused():
        return [one for one in driver.calls("CreateVolume") if one.code == "UNAVAILABLE"]

    try:
        before = [scene.claim(f"before-{number}", storage_class) for number in range(20)]
        dead = [one for one in before if is_east(one)]
        wait_until(
            lambda: len(refused()) > 2 * len(dead), 60, "all of east failed and failed again"
        )
        after = [scene.claim(f"after-{number}", storage_class) for number in range(10)]
        well = [one["metadata"]["name"] for one in (*before, *after) if not is_east(one)]
        scene.wait_bound(*well, timeout_seconds=15)
        assert {scene.get(one["metadata"]["name"])["status"]["phase"] for one in dead} == {
            "Pending"
        }
    finally:
        driver.set_rules()
