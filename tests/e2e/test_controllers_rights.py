"""The permissions of each k8s/components/controller-* suffice, with the shipped Redis users."""

from __future__ import annotations

import os

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.life import CAPABILITIES, CONTROLLERS, FLAGS, Life
from tests.support.redis_server import is_as_shipped
from tests.support.shipped import K8S, NAMESPACE
from tests.support.shipped_fleet import ShippedFleet
from tests.support.waiting import wait_until

COMPONENTS = sorted(one.name for one in (K8S / "components").glob("controller-*"))


@pytest.fixture
def driver():
    with DirectoryDriver(arguments=[f"--capabilities={CAPABILITIES}"]) as driver:
        yield driver


@pytest.fixture
def fleet(request, tmp_path, api, driver, redis_binary):
    if os.environ.get("CSI_FLEET_TEST_KUBECONFIG") or not is_as_shipped(redis_binary):
        pytest.skip("needs a control plane with RBAC of its own, and Redis 7")
    plane = request.getfixturevalue("control_plane")
    fleet = ShippedFleet(
        tmp_path,
        plane,
        redis_binary,
        [driver],
        *FLAGS,
        controllers=CONTROLLERS,
        # The policies restrict the worker to this driver.
        components=[*COMPONENTS, "admission-policy"],
    )
    name = "test-serves"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    rule = {"apiGroups": ["csi-fleet.io"], "resources": ["drivers"],
            "resourceNames": [driver.name], "verbs": ["serve"]}  # fmt: skip
    version = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
    account = {"kind": "ServiceAccount", "name": "worker", "namespace": NAMESPACE}
    api.apply({**version, "kind": "ClusterRole", "rules": [rule]})
    api.apply({**version, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [account]})
    with fleet:
        yield fleet
    admission = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    for part in ("ybindings", "ies"):
        for item in api.items(admission + part):
            api.delete(f"{admission}{part}/{item['metadata']['name']}")
    for kind in ("clusterrolebindings", "clusterroles"):
        for part in COMPONENTS:
            for account in ("watcher", "worker"):
                role = f"csi-fleet-{account}-{part.removeprefix('controller-')}"
                api.delete(f"/apis/rbac.authorization.k8s.io/v1/{kind}/{role}")


def test_every_operation_is_allowed(fleet, scene, driver):
    """R-122, DR-012, A-110: they need secrets, the pods of a used volume, and all finalizers."""
    scene.secret("login", user="bWU=")
    life = Life(scene, driver, "login")
    try:
        life.prepare()
        driver.set_rules(
            {"method": "ControllerExpandVolume", "code": "FAILED_PRECONDITION", "times": 1}
        )
        life.begin()

        def all_done():
            assert life.undone() == [], fleet.log_text()[-2000:]
            return True

        wait_until(all_done, 60, "every operation is done")
    finally:
        life.clean_up()
        scene.clean_up()
    wait_until(lambda: driver.volumes() == {} == driver.snapshots(), 60, "and its end")
    assert "is forbidden" not in fleet.log_text()
    assert "ValidatingAdmissionPolicy" not in fleet.log_text()
