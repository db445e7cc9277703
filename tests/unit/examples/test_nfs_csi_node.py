"""Mounts of the NFS CSI driver, and the article's profile (NFT-030 to NFT-042, NFT-070)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from csi_client import messages as csi
from examples.nfs_csi_driver.__main__ import services
from examples.nfs_csi_driver.attaching import AttachService
from examples.nfs_csi_driver.controller import VolumeService
from examples.nfs_csi_driver.mounters import CommandMounter, FakeMounter, source_of
from examples.nfs_csi_driver.settings import Settings
from tests.support.nfs_driver import (
    CLASS,
    META,
    Driver,
    capability,
    refused,
)


@pytest.fixture
def driver(tmp_path):
    return Driver(tmp_path / "state")


def test_nft030_nft031_publish_twice_and_another(driver, tmp_path):
    one, two, target = driver.create("a"), driver.create("b"), tmp_path / "pod" / "mount"
    for _ in range(2):
        driver.publish(one, target)
    (mount,) = driver.mounter.mounts()
    assert (mount.source, mount.target) == ("nfs1:/data/a", str(target))
    with refused("ALREADY_EXISTS"):
        driver.publish(two, target)


@pytest.mark.parametrize(
    ("mode", "fields"),
    [("SINGLE_NODE_WRITER", {"readonly": True}), ("MULTI_NODE_READER_ONLY", {})],
)
def test_nft032_read_only(driver, tmp_path, mode, fields):
    driver.publish(driver.create(), tmp_path / "t", mode, **fields)
    assert driver.mounter.mounts()[0].is_read_only


def test_nft033_the_id_is_enough(driver, tmp_path):
    driver.publish(driver.create().volume_id, tmp_path / "t", context={})
    assert driver.mounter.mounts()[0].source == "nfs1:/data/pvc-1"
    with refused("INVALID_ARGUMENT"):
        driver.publish("free-text", tmp_path / "u", context={})


def test_nft034_ipv6():
    assert source_of("fd00::1", "/data/") == "[fd00::1]:/data"


def test_nft035_a_stale_handle_is_mounted_again(driver, tmp_path, monkeypatch):
    """The server forgot the directory; the kubelet's next publish repairs the mount."""
    volume, target, lstat = driver.create(), tmp_path / "t", Path.lstat
    driver.publish(volume, target)
    mount, mounted, stale = driver.mounter.mount, [], [target]

    def seen(server, path, place, options):
        mounted.append(place)
        mount(server, path, place, options)

    def forgotten(path):
        if path in stale:
            stale.remove(path)
            raise OSError(errno.ESTALE, "Stale file handle")
        return lstat(path)

    monkeypatch.setattr(driver.mounter, "mount", seen)
    monkeypatch.setattr(Path, "lstat", forgotten)
    driver.publish(volume, target)
    assert mounted == [target]
    assert [one.target for one in driver.mounter.mounts()] == [str(target)]


def test_nft036_a_failed_mount_leaves_no_target(driver, tmp_path):
    volume = driver.create()
    (driver.share / "pvc-1").rmdir()
    with refused("NOT_FOUND"):
        driver.publish(volume, tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_nft037_permissions(driver, tmp_path):
    volume = driver.create(parameters={**CLASS, "mountPermissions": "0770"})
    driver.publish(volume, tmp_path / "t")
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o770


def test_nft038_nft039_unpublish(driver, tmp_path):
    volume, target = driver.create(), tmp_path / "t"
    driver.unpublish(volume, target)
    driver.publish(volume, target)
    driver.mounter.mount("nfs1", "data/pvc-1", target, ())
    driver.unpublish(volume, target)
    assert not target.exists()
    assert driver.mounter.mounts() == []
    target.mkdir()
    (target / "file").write_text("x")
    with refused("INTERNAL"):
        driver.unpublish(volume, target)
    assert (target / "file").exists()


def test_nft040_a_single_writer_has_one_target(driver, tmp_path):
    volume = driver.create()
    driver.publish(volume, tmp_path / "t", "SINGLE_NODE_SINGLE_WRITER")
    with refused("FAILED_PRECONDITION"):
        driver.publish(volume, tmp_path / "u", "SINGLE_NODE_SINGLE_WRITER")
    driver.publish(volume, tmp_path / "v", "SINGLE_NODE_MULTI_WRITER")


def test_nft041_mountinfo_with_blanks(tmp_path, monkeypatch):
    table = tmp_path / "mountinfo"
    table.write_text(
        "36 35 98:0 / /a\\040b rw,noatime shared:1 - nfs4 nfs1:/data rw\n"
        "37 35 98:0 / /ro ro - nfs4 nfs1:/x\\134y rw\n"
    )
    monkeypatch.setattr("examples.nfs_csi_driver.mounters.MOUNTINFO", table)
    found = CommandMounter(tmp_path / "work", None, 1.0).mounts()
    assert [(one.source, one.target, one.is_read_only) for one in found] == [
        ("nfs1:/data", "/a b", False),
        ("nfs1:/x\\y", "/ro", True),
    ]


def test_nft042_stats(driver, tmp_path):
    volume, target = driver.create(), tmp_path / "t"
    request = csi.NodeGetVolumeStatsRequest(volume_id=volume.volume_id, volume_path=str(target))
    with refused("NOT_FOUND"):
        driver.node.node_get_volume_stats(request)
    driver.publish(volume, target)
    answer = driver.node.node_get_volume_stats(request)
    assert [one.unit for one in answer.usage] == [1, 2]
    assert driver.node.node_get_volume_stats(request) is answer
    driver.unpublish(volume, target)
    with refused("NOT_FOUND"):
        driver.node.node_get_volume_stats(request)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param("echo 'access denied by server'; exit 32", "PERMISSION_DENIED", id="denied"),
        pytest.param("echo 'invalid argument'; exit 32", "INVALID_ARGUMENT", id="argument"),
        pytest.param("echo 'No such file or directory'; exit 32", "NOT_FOUND", id="missing"),
        pytest.param("echo 'Connection refused'; exit 32", "UNAVAILABLE", id="NFT-020 down"),
        pytest.param("echo 'what'; exit 1", "INTERNAL", id="other"),
        pytest.param("sleep 60", "DEADLINE_EXCEEDED", id="NFT-020 hangs"),
    ],
)
def test_nf041_what_mount_says(tmp_path, monkeypatch, script, code):
    helper = tmp_path / "bin" / "mount"
    helper.parent.mkdir()
    helper.write_text(f"#!/bin/sh\n{script}\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}:{os.environ['PATH']}")
    mounter = CommandMounter(tmp_path / "work", None, 0.3)
    with refused(code), mounter.opened("nfs1", "data", ["nfsvers=3"]):
        pass
    assert list((tmp_path / "work").iterdir()) == []


def test_nf010_identity_follows_the_role(tmp_path):
    for role, has in (("all", True), ("node", False)):
        identity, *others = services(Settings(role=role, node_id="n"), FakeMounter(tmp_path))
        answer = identity.get_plugin_capabilities(csi.GetPluginCapabilitiesRequest())
        assert bool(answer.capabilities) is has
        assert any(isinstance(one, VolumeService) for one in others) is has
        assert identity.probe(csi.ProbeRequest()).ready.value


def test_nft070_nft071_the_articles_profile(tmp_path):
    driver = Driver(
        tmp_path, id_scheme="demo", default_server="nfs1", default_share="/data", attach=True
    )
    volume = driver.create(parameters={**CLASS, **META})
    assert (volume.volume_id, dict(volume.volume_context)) == ("nfs-volume-pvc-1", {})
    attach = AttachService(driver.volumes)
    attach.controller_publish_volume(
        csi.ControllerPublishVolumeRequest(
            volume_id=volume.volume_id, node_id="node-1", volume_capability=capability()
        )
    )
    driver.publish(volume, tmp_path / "t", "SINGLE_NODE_MULTI_WRITER")
    assert driver.mounter.mounts()[0].source == "nfs1:/data/pvc-1"
    driver.delete(volume.volume_id)
    driver.delete("other-pvc-1")
    assert driver.names() == []
    with refused("INVALID_ARGUMENT"):
        driver.create("pvc-2", {"server": "nfs1", "share": "/elsewhere"})
