"""A shadow predicts what another csi-fleet does, which acts as the Go sidecars for the same driver.

The shadow runs alone at first, so that it can only predict and nothing may change. It then compares
its predictions with what the other csi-fleet does.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.support.attach_cluster import ATTACHMENTS, CAPABILITIES, CSI_NODES
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import ROOT, Fleet, environment, program
from tests.support.waiting import wait_until

CONTROLLERS = "--controllers=provisioner,attacher"
CLAIMS = 5
ASKED = {
    "Probe",
    "GetPluginInfo",
    "GetPluginCapabilities",
    "ControllerGetCapabilities",
    "NodeGetCapabilities",
}


@pytest.fixture(scope="module")
def driver():
    with DirectoryDriver(arguments=[f"--capabilities={CAPABILITIES}"]) as driver:
        yield driver


@pytest.fixture(scope="module")
def shadow(tmp_path_factory, kubeconfig, driver):
    directory = tmp_path_factory.mktemp("shadow")
    flags = (CONTROLLERS, "--shadow", "--leader-election", "-v=2")
    with Fleet(directory, kubeconfig, [driver], *flags) as fleet:
        yield fleet


def report(shadow, driver):
    """Return the entry of the driver in `csi-fleet shadow report`."""
    command = [*program(), "shadow", "report", f"--redis-url={shadow.redis_url}", "-o", "json"]
    found = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert found.returncode in {0, 1}, found.stderr
    return json.loads(found.stdout)["drivers"].get(
        driver.name, {"counts": {}, "open": 0, "differences": []}
    )


def wait_open(shadow, driver, count):
    def enough():
        found = report(shadow, driver)
        assert found["open"] >= count, found
        return True

    wait_until(enough, 60, "the shadow has predicted", interval_seconds=1)


def attach(api, scene, driver, node, volume):
    """Create a CSINode and a VolumeAttachment; return the attachment's path."""
    made = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node}}
    entry = {"name": driver.name, "nodeID": f"id-{node}", "topologyKeys": None}
    api.create({**made, "spec": {"drivers": [entry]}})
    name = f"va-{node}"
    source = {"persistentVolumeName": volume}
    body = {"attacher": driver.name, "nodeName": node, "source": source}
    metadata = {"name": name}
    api.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttachment",
            "metadata": metadata,
            "spec": body,
        }
    )
    return f"{ATTACHMENTS}/{name}"


def leases(api, driver):
    """Return the names of the Leases of this driver; each controller's Lease is named after it."""
    names = [one["metadata"]["name"] for one in api.items("/apis/coordination.k8s.io/v1/leases")]
    return [one for one in names if driver.name.replace(".", "-") in one.replace(".", "-")]


def test_shadow_agrees_and_changes_nothing(api, scene, kubeconfig, driver, shadow, tmp_path):
    """Issue 22: the shadow writes nothing, only makes handshake calls, and predicts correctly."""
    storage_class = scene.storage_class(driver.name, reclaimPolicy="Delete")
    names = [f"data-{index}" for index in range(CLAIMS)]
    for name in names:
        scene.claim(name, storage_class)
    wait_open(shadow, driver, CLAIMS)
    assert scene.volumes() == []
    assert {reason for name in names for reason in scene.reasons(name)} == set()
    assert leases(api, driver) == []
    assert {call.method for call in driver.calls()} <= ASKED

    with Fleet(tmp_path / "sidecar", kubeconfig, [driver], CONTROLLERS) as sidecar:
        scene.wait_bound(*names)
        agree(shadow, driver, CLAIMS)
        sidecar.stop()
        volume = scene.volumes()[0]["metadata"]["name"]
        place = attach(api, scene, driver, f"{scene.name}-n", volume)
        for name in names[1:]:
            scene.delete(name)
        # These are the attachment with its volume's finalizer, and the deletions of the other
        # volumes.
        wait_open(shadow, driver, 2)
        assert api.find(place).get("status", {}).get("attached") in {None, False}
        sidecar.start()
        wait_until(lambda: api.find(place).get("status", {}).get("attached"), 60, "it is attached")
        agree(shadow, driver, CLAIMS + 2)
        api.delete(place)
        wait_until(lambda: api.find(place) is None, 60, "it is detached")
        scene.delete(names[0])
        scene.wait_gone()
    api.delete(f"{CSI_NODES}/{scene.name}-n")
    assert "Traceback" not in shadow.log_text()
    assert len(driver.calls("CreateVolume")) == CLAIMS


def agree(shadow, driver, count):
    """Wait until `count` predictions agree; none may differ."""

    def done():
        found = report(shadow, driver)
        assert not found["counts"].get("differs"), found["differences"]
        assert not found["counts"].get("unforeseen"), found
        assert found["counts"].get("agrees", 0) >= count, found
        return True

    wait_until(done, 90, f"{count} predictions agree", interval_seconds=1)
