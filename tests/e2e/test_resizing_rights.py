"""The rights of k8s/components/controller-resizer are enough, with the shipped users of Redis."""

from __future__ import annotations

import os

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.redis_server import is_seven
from tests.support.shipped_fleet import ShippedFleet
from tests.support.waiting import wait_until

COMPONENT = "controller-resizer"
CAPABILITIES = "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME,EXPAND_VOLUME,MODIFY_VOLUME"
EXPAND = "ControllerExpandVolume"
ROLES = ("watcher-resizer", "worker-resizer")


@pytest.fixture
def driver():
    with DirectoryDriver(arguments=["--capabilities", CAPABILITIES]) as driver:
        yield driver


@pytest.fixture
def fleet(request, tmp_path, api, driver, redis_binary):
    if os.environ.get("CSI_FLEET_TEST_KUBECONFIG") or not is_seven(redis_binary):
        pytest.skip("needs a control plane with RBAC of its own, and Redis 7")
    plane = request.getfixturevalue("control_plane")
    fleet = ShippedFleet(
        tmp_path,
        plane,
        redis_binary,
        [driver],
        "--timeout=3s",
        controllers="provisioner,resizer",
        components=[COMPONENT],
    )
    with fleet:
        yield fleet
    for kind in ("clusterrolebindings", "clusterroles"):
        for role in ROLES:
            api.delete(f"/apis/rbac.authorization.k8s.io/v1/{kind}/csi-fleet-{role}")


def test_growth_classes_and_the_look_for_pods_are_allowed(fleet, api, scene, driver, control_plane):
    """R-122, DR-012: a volume that was refused in use, its pods, its size and its class."""
    driver.set_rules({"method": EXPAND, "code": "FAILED_PRECONDITION", "times": 1})
    full = f"{scene.name}-gold"
    api.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttributesClass",
            "metadata": {"name": full},
            "driverName": driver.name,
            "parameters": {"tier": "gold"},
        }
    )
    scene.claim("data", scene.storage_class(driver.name, allowVolumeExpansion=True))
    scene.wait_bound("data")
    spec = {
        "resources": {"requests": {"storage": "2Gi"}},
        "volumeAttributesClassName": full,
    }
    api.patch(f"{scene.claims_path}/data", {"spec": spec})

    def is_done():
        status = scene.get("data")["status"]
        assert status["capacity"]["storage"] == "2Gi", status
        return status.get("currentVolumeAttributesClassName") == full

    wait_until(is_done, 60, "size and class are as wanted")
    assert "is forbidden" not in fleet.log_text()
    api.delete(f"/apis/storage.k8s.io/v1/volumeattributesclasses/{full}")
