"""The controller `health` as a process, with a driver for CSI 1.12 and one for 1.13.

This API server does not store healthStatus and drops the field, so only events show the health.
"""

from __future__ import annotations

import json
import os
import re

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.redis_server import is_as_shipped
from tests.support.shipped_fleet import ShippedFleet
from tests.support.waiting import wait_until

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


def test_drivers_of_both_versions_in_one_installation(tmp_path, kubeconfig, scene):
    """VHD-010, VHD-012: both drivers' volumes turn abnormal and recover.

    A healthy claim has no event.
    """
    drivers = {kind: driver_of(kind) for kind in KINDS}
    names = {kind: re.sub(r"[^a-z0-9]+", "-", kind) for kind in KINDS}
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
            for kind, name in names.items():
                wait_until(lambda name=name: told(scene, name, ABNORMAL), 60, f"event of {kind}")
                assert told(scene, name, ABNORMAL) == ["disk 3 is slow"]
                assert not told(scene, name, NORMAL)
            for kind, driver in drivers.items():
                report(driver, scene, names[kind])
            for kind, name in names.items():
                wait_until(lambda name=name: told(scene, name, NORMAL), 60, f"recovery of {kind}")
            log = fleet.log_text()
        for kind, name in names.items():
            assert not told(scene, f"fine-{name}", ABNORMAL), kind
            assert "healthStatus" not in scene.get(name)["status"]
        assert log.count("The API server dropped the field healthStatus") == len(drivers)
        assert "Traceback" not in log
    finally:
        for driver in drivers.values():
            driver.close()


def test_a_failed_driver_has_not_recovered(tmp_path, kubeconfig, scene):
    """VH-013: no recovery is reported while calls fail, nor after csi-fleet restarts."""
    with driver_of("1.13, list") as driver:
        name = "data"
        with Fleet(tmp_path, kubeconfig, [driver], *FLAGS):
            scene.claim(name, scene.storage_class(driver.name))
            scene.wait_bound()
            report(driver, scene, name, SLOW)
            wait_until(lambda: told(scene, name, ABNORMAL), 60, "the event")
            driver.set_rules({"method": "Controller*VolumeHealth", "code": "INTERNAL"})
            report(driver, scene, name)
            failed = len(driver.calls("ControllerListVolumeHealth")) + 3
            wait_until(
                lambda: len(driver.calls("ControllerListVolumeHealth")) > failed, 30, "more polls"
            )
            assert not told(scene, name, NORMAL)
            driver.set_rules()
            wait_until(lambda: told(scene, name, NORMAL), 60, "the recovery")


def test_the_shipped_rights_are_enough(request, tmp_path, scene, redis_binary):
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
        wait_until(lambda: told(scene, "data", ABNORMAL), 60, "the event")
        assert "is forbidden" not in fleet.log_text()
