"""The controller `health` as a process, with drivers for CSI 1.12 and for 1.13.

An API server of Kubernetes 1.37 stores healthStatus. One of 1.36 drops the field, as one of 1.37
does without the feature gate; then only events show the health.
"""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise

import pytest

from tests.support.controlplane import FEATURE_GATES, ControlPlane
from tests.support.controlplane_binaries import KUBERNETES_VERSION
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet, Scene, leader_flags
from tests.support.redis_server import is_as_shipped
from tests.support.shipped_fleet import ShippedFleet
from tests.support.tool import Tool
from tests.support.waiting import let_pass, wait_until

PROGRAM = "csi-external-health-monitor-controller"
BASE = "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME"
KINDS = {
    "1.13, list": f"{BASE},LIST_VOLUME_HEALTH,GET_VOLUME_HEALTH",
    "1.13, get": f"{BASE},GET_VOLUME_HEALTH",
    "1.12, list": f"{BASE},LIST_VOLUMES,VOLUME_CONDITION",
    "1.12, get": f"{BASE},GET_VOLUME,VOLUME_CONDITION",
}
OFTEN = ("--list-volumes-interval=1s", "--monitor-interval=1s")
FLAGS = (*OFTEN, "--controllers=provisioner,health", "--volume-condition")
SLOW = {"status": "DEGRADED", "reason": "SlowDisk", "message": "disk 3 is slow"}
ABNORMAL, NORMAL = "VolumeConditionAbnormal", "VolumeConditionNormal"


DROPPED = "The API server dropped the field healthStatus"


@pytest.fixture(scope="session")
def stores(api) -> bool:
    """Return whether the API server stores healthStatus."""
    return int(api.request("GET", "/version")["minor"].rstrip("+")) >= 37


def driver_of(kind: str) -> DirectoryDriver:
    return DirectoryDriver(arguments=["--capabilities", KINDS[kind]])


def report(driver: DirectoryDriver, scene, name: str, *conditions) -> None:
    """Set the health that the driver reports for the claim's volume from now on."""
    claim = scene.get(name)
    handle = scene.volume(claim["spec"]["volumeName"])["spec"]["csi"]["volumeHandle"]
    draft = driver.root / "health.draft"
    draft.write_text(json.dumps({handle: list(conditions)}))
    draft.replace(driver.root / "health.json")


def told(scene, name: str, reason: str) -> list[str]:
    """Return the messages of the claim's events with this reason."""
    return [one["message"] for one in scene.events(name) if one["reason"] == reason]


def stored(scene, name: str) -> list[dict[str, str]]:
    """Return the conditions in the claim's status; check that they have a time."""
    health = scene.get(name)["status"].get("healthStatus")
    assert health is None or health["lastTransitionTime"]
    return health["healthConditions"] if health else []


def shown(scene, name: str, *, stores: bool) -> object:
    """Return whether the claim shows the health of a driver for CSI 1.13 that is slow."""
    if not stores:
        return told(scene, name, ABNORMAL)
    return stored(scene, name) == [{**SLOW, "status": "Degraded"}]


def test_drivers_of_both_versions_in_one_installation(tmp_path, kubeconfig, scene, stores):
    """VH-030, VHD-010, VHD-012: both drivers' volumes turn abnormal and recover.

    A healthy claim has neither a status nor an event. If the status shows the health, there are
    no events for drivers for CSI 1.13.
    """
    drivers = {kind: driver_of(kind) for kind in KINDS}
    names = {kind: re.sub(r"[^a-z0-9]+", "-", kind) for kind in KINDS}
    with_events = [kind for kind in KINDS if not stores or "1.12" in kind]
    try:
        for driver in drivers.values():
            driver.start()
        with Fleet(tmp_path, kubeconfig, list(drivers.values()), *FLAGS) as fleet:
            for kind, driver in drivers.items():
                place = scene.storage_class(driver.name, f"{scene.namespace}-{names[kind]}")
                scene.claim(names[kind], place)
                scene.claim(f"fine-{names[kind]}", place)
            scene.wait_bound()
            for kind, driver in drivers.items():
                report(driver, scene, names[kind], SLOW)
            for kind in with_events:
                name = names[kind]
                wait_until(lambda name=name: told(scene, name, ABNORMAL), 60, f"event of {kind}")
                assert told(scene, name, ABNORMAL) == ["disk 3 is slow"]
                assert not told(scene, name, NORMAL)
            for kind, name in names.items() if stores else ():
                wait_until(lambda name=name: stored(scene, name), 60, f"status of {kind}")
                reason = ABNORMAL if "1.12" in kind else "SlowDisk"
                condition = {"status": "Degraded", "reason": reason, "message": "disk 3 is slow"}
                assert stored(scene, name) == [condition]
            if stores:
                tool = Tool(kubeconfig, fleet.redis_url)
                text = tool.explain("pvc", f"{scene.namespace}/{names['1.13, list']}")
                assert "disk 3 is slow" in text
                worse = {**SLOW, "status": "INACCESSIBLE", "reason": "path lost"}
                report(drivers["1.13, list"], scene, names["1.13, list"], worse, SLOW)
                both = ["path_lost", "SlowDisk"]  # the API server refuses a blank in a reason
                name = names["1.13, list"]
                wait_until(
                    lambda: sorted(one["reason"] for one in stored(scene, name)) == sorted(both),
                    60,
                    "both conditions",
                )
            for kind, driver in drivers.items():
                report(driver, scene, names[kind])
            for kind in with_events:
                name = names[kind]
                wait_until(lambda name=name: told(scene, name, NORMAL), 60, f"recovery of {kind}")
            for kind, name in names.items():
                wait_until(lambda name=name: not stored(scene, name), 60, f"recovery of {kind}")
            log = fleet.log_text()
        for kind, name in names.items():
            assert not told(scene, f"fine-{name}", ABNORMAL), kind
            assert "healthStatus" not in scene.get(f"fine-{name}")["status"]
            assert "healthStatus" not in scene.get(name)["status"]
            assert kind in with_events or not told(scene, name, ABNORMAL)
        assert log.count(DROPPED) == (0 if stores else len(drivers))
        assert "Traceback" not in log
    finally:
        for driver in drivers.values():
            driver.close()


def test_a_failed_driver_has_not_recovered(tmp_path, kubeconfig, scene, stores):
    """VH-013: no recovery is reported while calls fail, nor after csi-fleet restarts."""
    with driver_of("1.13, list") as driver:
        name = "data"
        with Fleet(tmp_path, kubeconfig, [driver], *FLAGS):
            scene.claim(name, scene.storage_class(driver.name))
            scene.wait_bound()
            report(driver, scene, name, SLOW)
            wait_until(lambda: shown(scene, name, stores=stores), 60, "the condition")
            driver.set_rules({"method": "Controller*VolumeHealth", "code": "INTERNAL"})
            report(driver, scene, name)
            failed = len(driver.calls("ControllerListVolumeHealth")) + 3
            wait_until(
                lambda: len(driver.calls("ControllerListVolumeHealth")) > failed, 30, "more polls"
            )
            assert not told(scene, name, NORMAL)
            assert shown(scene, name, stores=stores)
            driver.set_rules()
            wait_until(
                lambda: not stored(scene, name) if stores else told(scene, name, NORMAL),
                60,
                "the recovery",
            )


if KUBERNETES_VERSION >= "v1.37":  # older API servers do not know the gate

    def test_an_api_server_that_gets_the_feature_gate_later(tmp_path):
        """VH-032, VHD-002: the health is shown by events first, and stored as soon as it can be."""
        off = {**FEATURE_GATES, "CSIVolumeHealth": False}
        with ControlPlane(tmp_path / "plane", feature_gates=off) as plane, plane.api() as api:
            scene = Scene(api)
            flags = (*FLAGS, "--dropped-status-interval=1s")
            with (
                driver_of("1.13, list") as driver,
                Fleet(tmp_path / "fleet", plane.kubeconfig, [driver], *flags) as fleet,
            ):
                scene.claim("data", scene.storage_class(driver.name))
                scene.wait_bound()
                report(driver, scene, "data", SLOW)
                wait_until(lambda: told(scene, "data", ABNORMAL), 60, "the event")
                assert not stored(scene, "data")
                wait_until(lambda: DROPPED in fleet.log_text(), 30, "the warning")
                plane.set_feature_gates({**off, "CSIVolumeHealth": True})
                wait_until(lambda: shown(scene, "data", stores=True), 60, "the status")
                assert "the API server stores the healthStatus field again" in fleet.log_text()
                assert fleet.log_text().count(DROPPED) == 1


def test_a_driver_with_one_call_at_a_time_creates_a_volume_during_a_poll(
    tmp_path, kubeconfig, scene
):
    """VHD-014: the creation does not wait until all twenty volumes were asked about."""
    count, get = 20, "ControllerGetVolumeHealth"
    with driver_of("1.13, get") as driver:
        file = tmp_path / "drivers.yaml"
        serial = f"{{name: {driver.name}, endpoint: {driver.address}, limits: {{serial: true}}}}"
        file.write_text(f"drivers: [{serial}]\n")
        with Fleet(tmp_path / "f", kubeconfig, [], f"--drivers-file={file}", *FLAGS):
            place = scene.storage_class(driver.name)
            for number in range(count):
                scene.claim(f"data-{number}", place)
            scene.wait_bound()
            driver.set_rules({"method": get, "delay_seconds": 1})
            before = len(driver.calls(get))
            wait_until(lambda: len(driver.calls(get)) > before + 1, 60, "a poll")
            before = len(driver.calls(get))
            scene.claim("late", place)
            scene.wait_bound("late")
            (late,) = driver.calls("CreateVolume")[count:]
            polled = [one for one in driver.calls(get)[before:] if one.started_at < late.started_at]
            assert len(polled) < count // 2
            driver.set_rules()
        used = [one for one in driver.calls() if one.method in {get, "CreateVolume"}]
        assert all(one.ended_at <= other.started_at for one, other in pairwise(used))


def test_it_replaces_the_go_program(tmp_path, kubeconfig, scene):
    """VH-040, VH-041: under its name and with its arguments, it waits for its Lease."""
    kind = "1.12, list"
    with driver_of(kind) as driver:
        with Fleet(tmp_path / "provisioner", kubeconfig, [driver]):
            scene.claim("data", scene.storage_class(driver.name))
            scene.wait_bound()
        lease = f"external-health-monitor-leader-{driver.name}".replace(".", "-")
        path = f"/apis/coordination.k8s.io/v1/namespaces/{scene.namespace}/leases"
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        spec = {"holderIdentity": "go", "leaseDurationSeconds": 3600}
        meta = {"name": lease, "namespace": scene.namespace}
        scene.api.create({**body, "metadata": meta, "spec": spec})
        report(driver, scene, "data", SLOW)
        flags = (*OFTEN, "--volume-condition", "--resync=10m", *leader_flags(scene.namespace))
        with Fleet(tmp_path / "health", kubeconfig, [driver], *flags, command=PROGRAM) as fleet:
            wait_until(lambda: f"/{lease}" in fleet.log_text(), 30, "it waits for the Lease")
            let_pass(3)
            assert driver.calls("ListVolumes") == []
            scene.api.patch(f"{path}/{lease}", {"spec": {"holderIdentity": ""}})
            wait_until(lambda: told(scene, "data", ABNORMAL), 60, "the event")
            assert fleet.stop() == 0


def test_the_shipped_rights_are_enough(request, tmp_path, scene, redis_binary, stores):
    """VH-042: the accounts of k8s/ and the users of the shipped Redis suffice."""
    if os.environ.get("CSI_FLEET_TEST_KUBECONFIG") or not is_as_shipped(redis_binary):
        pytest.skip("needs a control plane with RBAC of its own, and Redis 7")
    plane = request.getfixturevalue("control_plane")
    parts = {"controllers": "provisioner,health", "components": ["controller-health"]}
    with (
        driver_of("1.13, list") as driver,
        ShippedFleet(tmp_path, plane, redis_binary, [driver], *OFTEN, **parts) as fleet,
    ):
        scene.claim("data", scene.storage_class(driver.name))
        scene.wait_bound()
        report(driver, scene, "data", SLOW)
        wait_until(lambda: shown(scene, "data", stores=stores), 60, "the condition")
        assert "is forbidden" not in fleet.log_text()
