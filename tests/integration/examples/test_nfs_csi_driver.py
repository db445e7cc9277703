"""The NFS CSI driver as a process: conformance, restarts, and real mounts if allowed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from csi_client import messages as csi
from csi_client.client import CsiClient
from csi_client.errors import CsiError
from tests.support.nfs_driver import CLASS, capability
from tests.support.processes import start_process
from tests.support.waiting import wait_until
from workers.conformance.driver import check_driver

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def place():
    """Return a folder with a short path: a unix socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="nfs-") as name:
        yield Path(name)


def command(place, *flags):
    return [
        *(sys.executable, "-m", "examples.nfs_csi_driver", f"--endpoint=unix://{place}/s"),
        *("--nodeid=node-1", f"--state-dir={place}/state", *flags),
    ]


@contextmanager
def served(place, *flags):
    process = start_process("nfs", command(place, *flags), log=place / "log", cwd=ROOT)
    client = CsiClient(str(place / "s"))
    try:
        wait_until(lambda: _answers(client), 30, "the driver serves")
        yield client, process
    finally:
        client.close()
        process.stop()


def _answers(client):
    try:
        return client.probe()
    except CsiError:
        return False


def test_nft080_it_keeps_every_promise(place):
    flags = ("--mounter=fake", "--default-server=nfs1", "--default-share=/data")
    with served(place, *flags) as (client, _):
        report = check_driver(client, parameters=CLASS)
    assert report.broken == [], report.text()
    skipped = [one.check for one in report.findings if one.verdict == "skipped"]
    assert skipped == ["volume-health", "list-paging", "topology-echo"]


def test_a_killed_process_changes_nothing(place):
    with served(place, "--mounter=fake") as (client, process):
        request = csi.CreateVolumeRequest(
            name="pvc-1", parameters=CLASS, volume_capabilities=[capability()]
        )
        first = client.create_volume(request)
        process.kill()
    # The socket file of the dead process still exists.
    with served(place, "--mounter=fake") as (client, _):
        assert client.create_volume(request) == first


def _may_mount():
    return os.geteuid() == 0 and Path("/proc/self/mountinfo").exists()


@pytest.mark.skipif(not _may_mount(), reason="bind mounts need root")
def test_real_mounts_show_the_volume(place):
    """NF-003 `bind`: a file that is written at the pod's target path appears in the share."""
    share = place / "state" / "exports" / "nfs1" / "data"
    share.mkdir(parents=True)
    target = place / "pod" / "mount"
    work = f"--working-mount-dir={place}/work"
    # Otherwise the driver may end while it empties the trash, and the next process removes the
    # mount (NF-082).
    with served(place, "--mounter=bind", "--delete-in-call", work) as (client, _):
        request = csi.CreateVolumeRequest(
            name="pvc-1", parameters=CLASS, volume_capabilities=[capability()]
        )
        volume = client.create_volume(request).volume
        publish = csi.NodePublishVolumeRequest(
            volume_id=volume.volume_id,
            target_path=str(target),
            volume_capability=capability(),
            volume_context=volume.volume_context,
        )
        for _ in range(2):
            client.call("Node/NodePublishVolume", publish, csi.NodePublishVolumeResponse)
        (target / "file").write_text("from the pod")
        assert (share / "pvc-1" / "file").read_text() == "from the pod"
        unpublish = csi.NodeUnpublishVolumeRequest(
            volume_id=volume.volume_id, target_path=str(target)
        )
        for _ in range(2):
            client.call("Node/NodeUnpublishVolume", unpublish, csi.NodeUnpublishVolumeResponse)
        client.delete_volume(volume.volume_id, {})
    assert not target.exists()
    assert not (share / "pvc-1").exists()
    assert str(place) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        pytest.param(["--endpoint=http://x"], "neither unix:///path nor tcp", id="endpoint"),
        pytest.param(["--nodeid="], "--nodeid is required", id="node id"),
        pytest.param(["--volume-id-scheme=demo"], "needs --default-server", id="demo"),
    ],
)
def test_a_wrong_command_line_ends_at_once(place, flags, words):
    done = subprocess.run(
        [*command(place, "--mounter=fake"), *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert words in done.stderr
