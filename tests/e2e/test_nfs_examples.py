"""Both NFS examples provision and delete on a real control plane (issue 11)."""

from __future__ import annotations

import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from csi_client.client import CsiClient
from csi_client.errors import CsiError
from tests.support.fleet import Fleet
from tests.support.processes import start_process
from tests.support.waiting import wait_until
from workers.constants import FINALIZER_VOLUME

ROOT = Path(__file__).resolve().parents[2]
TAG = f"t{uuid.uuid4().hex[:8]}"
PLUGIN = f"{TAG}.provisioner.test.com/nfs"
DRIVER = f"{TAG}.nfs.csi.k8s.io"
CLASS = {"server": "nfs1", "path": "/export"}
SHARE = {"server": "nfs1", "share": "/data"}


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def driver_root():
    """The folder of the running CSI driver, short enough for its socket's path."""
    with tempfile.TemporaryDirectory(prefix="nfs-") as name:
        root = Path(name)
        process = start_process(
            "nfs-csi-driver",
            [
                *(sys.executable, "-m", "examples.nfs_csi_driver", f"--endpoint=unix://{root}/s"),
                *("--nodeid=node-1", f"--drivername={DRIVER}", "--mounter=fake"),
                *(f"--state-dir={root}/state", "--default-server=nfs1", "--default-share=/data"),
            ],
            log=root / "driver.log",
            cwd=ROOT,
        )
        try:
            wait_until(lambda: _answers(root / "s"), 30, "the driver serves")
            yield root
        finally:
            process.stop()


def _answers(socket):
    client = CsiClient(str(socket), timeout_seconds=2.0)
    try:
        return client.probe()
    except CsiError:
        return False
    finally:
        client.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, kubeconfig, export, driver_root, redis_binary):
    """Run two workers that serve both the plug-in and the CSI driver."""
    env = {"NFS_EXPORTS": f"nfs1:/export={export}", "NFS_PROVISIONER_NAME": PLUGIN}
    flags = (
        "--provisioner=examples.nfs_provisioner.provisioner:NfsProvisioner",
        "--extra-create-metadata",
        "--workers=2",
    )
    directory = tmp_path_factory.mktemp("fleet")
    with Fleet(directory, kubeconfig, [str(driver_root / "s")], *flags, env=env) as fleet:
        yield fleet


def test_npt008_npt010_claims_become_directories(fleet, scene, export):
    """Each of two claims gets a directory, which is archived when the claim is deleted."""
    full = scene.storage_class(
        PLUGIN,
        "nfs",
        parameters={
            **CLASS,
            "subDir": "${pvc.metadata.namespace}/${pvc.metadata.name}",
            "onDelete": "archive",
        },
    )
    for name in ("one", "two"):
        scene.claim(name, full)
    claims = scene.wait_bound("one", "two")
    for name, claim in claims.items():
        volume = scene.volume_of(claim)
        path = f"/export/{scene.namespace}/{name}"
        assert volume["spec"]["nfs"] == {"server": "nfs1", "path": path}
        assert FINALIZER_VOLUME in volume["metadata"]["finalizers"]
        assert (export / scene.namespace / name).is_dir()
        scene.delete(name)
    scene.wait_gone()
    assert sorted(one.name for one in (export / f"archived-{scene.namespace}").iterdir()) == [
        "one",
        "two",
    ]


def test_npt002_npt004_npt005_the_articles_class(fleet, scene):
    full = scene.storage_class(PLUGIN, "nfs", parameters={**CLASS, "readOnly": "true"})
    scene.claim("good", full)
    scene.claim("selecting", full, selector={"matchLabels": {"a": "b"}})
    scene.claim("bad", scene.storage_class(PLUGIN, "bad", parameters={"path": "/export"}))
    claims = scene.wait_bound("good")
    assert scene.volume_of(claims["good"])["spec"]["nfs"]["readOnly"] is True
    assert scene.wait_event("selecting", "claim Selector is not supported")
    assert "Retries will be delayed" in scene.wait_event("bad", "'server' is missing")["message"]
    assert len(scene.volumes()) == 1


def test_npt006_a_block_claim_is_refused_by_the_engine(fleet, scene):
    """The plug-in has no `supports_block`."""
    scene.claim("block", scene.storage_class(PLUGIN, "nfs", parameters=CLASS), volumeMode="Block")
    scene.wait_event("block", "does not support block volume provisioning")
    assert scene.volumes() == []


def test_npt011_one_claim_of_two_workers_is_one_volume(fleet, scene, export):
    """Each claim gets one directory and one event of success, whichever worker takes it."""
    assert len(fleet.workers()) == 2
    parameters = {**CLASS, "subDir": "${pvc.metadata.namespace}-${pvc.metadata.name}"}
    full = scene.storage_class(PLUGIN, "nfs", parameters=parameters)
    names = [f"claim-{index}" for index in range(10)]
    for name in names:
        scene.claim(name, full)
    scene.wait_bound(*names)
    assert len(scene.volumes()) == len(list(export.glob(f"{scene.namespace}-*"))) == len(names)
    both = {"Provisioning", "ProvisioningSucceeded"}
    told = lambda: all(scene.reasons(name) == both for name in names)  # noqa: E731
    wait_until(told, 30, "each claim has its events")  # events of a burst are delayed


def test_npt001_static_volumes_are_not_touched(fleet, scene):
    """A PV made by hand is bound to a claim without class: the first step of the article."""
    name = f"{scene.name}-static"
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "nfs": {"server": "nfs1", "path": "/export"},
        "claimRef": {"namespace": scene.namespace, "name": "static"},
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
    }
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
    scene.api.create({**volume, "spec": spec})
    scene.claim("static", "")
    scene.wait_bound("static")
    found = scene.volume(name)["metadata"]
    assert FINALIZER_VOLUME not in found["finalizers"]
    assert scene.events("static") == []
    scene.delete("static")
    wait_until(lambda: scene.volume(name)["status"]["phase"] == "Released", 20, "released")
    scene.api.delete(f"/api/v1/persistentvolumes/{name}")


def test_nft001_the_csi_driver_makes_and_removes_directories(fleet, scene, driver_root):
    share = driver_root / "state" / "exports" / "nfs1" / "data"
    plain = scene.storage_class(DRIVER, "plain", parameters=SHARE)
    template = "${pvc.metadata.namespace}/${pvc.metadata.name}"
    deep = scene.storage_class(DRIVER, "deep", parameters={**SHARE, "subDir": template})
    scene.claim("one", plain)
    scene.claim("two", deep)
    claims = scene.wait_bound("one", "two")
    one, two = (scene.volume_of(claims[name])["spec"]["csi"] for name in ("one", "two"))
    name = f"pvc-{claims['one']['metadata']['uid']}"
    assert one["volumeHandle"] == f"nfs1#data#{name}##"
    assert one["volumeAttributes"]["subDir"] == name
    assert two["volumeAttributes"]["subDir"] == f"{scene.namespace}/two"
    assert (share / name).is_dir()
    assert (share / scene.namespace / "two").is_dir()

    source = {"kind": "PersistentVolumeClaim", "name": "one"}
    (share / name / "file").write_text("content")
    scene.claim("copy", plain, dataSource=source)
    copied = scene.wait_bound("copy")["copy"]
    place = share / f"pvc-{copied['metadata']['uid']}"
    assert (place / "file").read_text() == "content"

    for claim in ("one", "two", "copy"):
        scene.delete(claim)
    scene.wait_gone()
    assert [one.name for one in share.iterdir() if not one.name.startswith(".")] == []


def test_a_wrong_class_of_the_csi_driver_is_told(fleet, scene):
    scene.claim("data", scene.storage_class(DRIVER, "bad", parameters={**SHARE, "foo": "x"}))
    event = scene.wait_event("data", 'invalid parameter "foo" in storage class')
    assert "Retries will be delayed" in event["message"]
