"""The NFS CSI driver's services, called directly, on the fake mounter (section 6 of its spec)."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import threading

import pytest

from csi_client import messages as csi
from examples.nfs_csi_driver import content
from examples.nfs_csi_driver.__main__ import services
from examples.nfs_csi_driver.attaching import AttachService
from examples.nfs_csi_driver.controller import VolumeService
from examples.nfs_csi_driver.errors import RpcError
from examples.nfs_csi_driver.mounters import CommandMounter, FakeMounter, source_of
from examples.nfs_csi_driver.node import NodeService
from examples.nfs_csi_driver.parameters import RESERVED, SnapshotId, VolumeId, digest
from examples.nfs_csi_driver.records import Locks, Share
from examples.nfs_csi_driver.settings import Settings
from examples.nfs_csi_driver.snapshots import SnapshotService

MODES = csi.VolumeCapability.AccessMode.Mode
CLASS = {"server": "nfs1", "share": "/data"}
META = {
    "csi.storage.k8s.io/pvc/name": "claim",
    "csi.storage.k8s.io/pvc/namespace": "team",
    "csi.storage.k8s.io/pv/name": "pvc-1",
}


class Driver:
    """All services over one fake mounter."""

    def __init__(self, root, **settings):
        settings = {"delete_in_background": False} | settings
        self.settings = Settings(node_id="node-1", state_dir=root, **settings)
        self.mounter = FakeMounter(root)
        self.volumes = VolumeService(self.settings, self.mounter, Locks())
        self.snapshots = SnapshotService(self.volumes)
        self.node = NodeService(self.volumes)
        self.share = self.mounter.place("nfs1", "data")

    def create(self, name="pvc-1", parameters=None, size=1024, mode="SINGLE_NODE_WRITER", **fields):
        return self.volumes.create_volume(
            csi.CreateVolumeRequest(
                name=name,
                parameters=CLASS if parameters is None else parameters,
                capacity_range=csi.CapacityRange(required_bytes=size),
                **({"volume_capabilities": [capability(mode)]} | fields),
            )
        ).volume

    def delete(self, volume_id, **fields):
        self.volumes.delete_volume(csi.DeleteVolumeRequest(volume_id=volume_id, **fields))

    def snapshot(self, name, volume_id, **fields):
        return self.snapshots.create_snapshot(
            csi.CreateSnapshotRequest(name=name, source_volume_id=volume_id, **fields)
        ).snapshot

    def publish(self, volume, target, mode="SINGLE_NODE_WRITER", context=None, **fields):
        self.node.node_publish_volume(
            csi.NodePublishVolumeRequest(
                volume_id=volume if isinstance(volume, str) else volume.volume_id,
                target_path=str(target),
                volume_capability=capability(mode),
                volume_context=volume.volume_context if context is None else context,
                **fields,
            )
        )

    def unpublish(self, volume, target):
        self.node.node_unpublish_volume(
            csi.NodeUnpublishVolumeRequest(volume_id=volume.volume_id, target_path=str(target))
        )

    def names(self):
        """Directories of the share, without the driver's own."""
        return sorted(one.name for one in self.share.iterdir() if one.name != RESERVED)


def capability(mode="SINGLE_NODE_WRITER", *flags):
    return csi.VolumeCapability(
        mount=csi.VolumeCapability.MountVolume(mount_flags=flags),
        access_mode=csi.VolumeCapability.AccessMode(mode=MODES.Value(mode)),
    )


def from_snapshot(snapshot_id):
    source = csi.VolumeContentSource.SnapshotSource(snapshot_id=snapshot_id)
    return {"volume_content_source": csi.VolumeContentSource(snapshot=source)}


def from_volume(volume_id):
    source = csi.VolumeContentSource.VolumeSource(volume_id=volume_id)
    return {"volume_content_source": csi.VolumeContentSource(volume=source)}


def refused(code):
    return pytest.raises(RpcError, check=lambda error: error.code == code)


@pytest.fixture
def driver(tmp_path):
    return Driver(tmp_path / "state")


# Volumes.


@pytest.mark.parametrize("keys", [CLASS, {"Server": "nfs1", "SHARE": "/data"}])
def test_nft001_nft002_id_directory_and_context(driver, keys):
    volume = driver.create(parameters=keys)
    assert volume.volume_id == "nfs1#data#pvc-1##"
    assert volume.volume_context == {"server": "nfs1", "share": "/data", "subDir": "pvc-1"}
    assert volume.capacity_bytes == 1024
    assert (driver.share / "pvc-1").stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({"share": "/data"}, id="NFT-003 no server"),
        pytest.param({"server": "nfs1"}, id="no share"),
        pytest.param({**CLASS, "foo": "x"}, id="NFT-003 unknown key"),
        pytest.param({**CLASS, "mountOptions": "x"}, id="mountOptions"),
        pytest.param({**CLASS, "mountPermissions": "9"}, id="NFT-003 mode"),
        pytest.param({**CLASS, "onDelete": "burn"}, id="policy"),
        pytest.param({**CLASS, "subDir": "${pvc.metadata.name}"}, id="NFT-006 no metadata"),
        pytest.param({**CLASS, "subDir": "a/../b"}, id="NFT-007 parent"),
        pytest.param({**CLASS, "subDir": "..\\b"}, id="NFT-007 backslash"),
        pytest.param({"server": "nfs1", "share": "/x/.."}, id="NFT-007 share"),
        pytest.param({"server": "n#1", "share": "/data"}, id="NFD-011 server"),
        pytest.param({**CLASS, "subDir": "/"}, id="NFD-016 empty"),
        pytest.param({**CLASS, "subDir": ".nfs-csi/x"}, id="NFD-022 reserved"),
    ],
)
def test_wrong_parameters_are_refused(driver, parameters):
    with refused("INVALID_ARGUMENT"):
        driver.create(parameters=parameters)


def test_nft004_block_and_nothing_are_refused(driver):
    block = csi.VolumeCapability(block=csi.VolumeCapability.BlockVolume())
    for capabilities in ([], [block]):
        with refused("INVALID_ARGUMENT"):
            driver.create(volume_capabilities=capabilities)


def test_nft005_a_directory_by_template(driver):
    template = "${pvc.metadata.namespace}/${pvc.metadata.name}"
    volume = driver.create(parameters={**CLASS, **META, "subDir": template})
    assert volume.volume_id == "nfs1#data#team/claim#pvc-1#"
    assert (driver.share / "team/claim").is_dir()


def test_nft008_retain_keeps_the_directory(driver):
    volume = driver.create(parameters={**CLASS, "onDelete": "Retain"})
    assert volume.volume_id.endswith("#retain")
    driver.delete(volume.volume_id)
    assert driver.names() == ["pvc-1"]


def test_nft009_archive_twice(driver):
    volume = driver.create(parameters={**CLASS, "onDelete": "archive"})
    for _ in range(2):
        driver.delete(volume.volume_id)
    assert driver.names() == ["archived-pvc-1"]


@pytest.mark.parametrize(("removes", "count"), [(True, 1), (False, 2)])
def test_nft010_an_older_archive(tmp_path, removes, count):
    driver = Driver(tmp_path, remove_archived=removes)
    for _ in range(2):
        driver.delete(driver.create(parameters={**CLASS, "onDelete": "archive"}).volume_id)
    assert len(driver.names()) == count


def test_nft011_the_same_again_and_another(driver):
    first = driver.create()
    assert driver.create() == first
    for change in (
        {"size": 2048},
        {"parameters": {**CLASS, "mountPermissions": "0700"}},
        from_volume(first.volume_id),
    ):
        with refused("ALREADY_EXISTS"):
            driver.create(**change)


def test_nft012_killed_between_directory_and_answer(driver, monkeypatch):
    monkeypatch.setattr(Share, "update", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        driver.create()
    monkeypatch.undo()
    assert driver.create().volume_id == "nfs1#data#pvc-1##"
    record = json.loads((driver.share / RESERVED / f"{digest('pvc-1')}.json").read_text())
    assert record["state"] == "ready"


def test_nft013_only_empty_parents_go(driver):
    for name in ("a", "b"):
        driver.create(name, {**CLASS, "subDir": f"team/deep/{name}"})
    driver.delete("nfs1#data#team/deep/a#a#")
    assert (driver.share / "team/deep/b").is_dir()
    driver.delete("nfs1#data#team/deep/b#b#")
    assert driver.names() == []


@pytest.mark.parametrize("volume_id", ["x", "a#b#../c", "a#../b#c", "a#b#.nfs-csi"])
def test_nft014_ids_that_are_not_ours(driver, volume_id):
    driver.create()
    driver.delete(volume_id)
    assert driver.names() == ["pvc-1"]


def test_nft015_the_old_form_of_ids(driver):
    (driver.share / "pvc-1").mkdir(parents=True)
    driver.delete("nfs1/data/pvc-1")
    assert driver.names() == []


def test_nft016_links_do_not_lead_out(driver, tmp_path):
    outside = tmp_path / "outside"
    (outside / "x").mkdir(parents=True)
    driver.share.mkdir(parents=True)
    (driver.share / "link").symlink_to(outside)
    driver.delete("nfs1#data#link##")
    assert (outside / "x").is_dir()
    (driver.share / "link2").symlink_to(outside)
    with refused("INTERNAL"):
        driver.delete("nfs1#data#link2/x##")
    assert (outside / "x").is_dir()


def test_nft018_two_processes_one_volume(tmp_path):
    """The lease file in the share; a dead owner's is taken over after its time."""
    one, two = Driver(tmp_path), Driver(tmp_path)
    with one.mounter.opened("nfs1", "data", ()) as root:
        share = Share(root)
        with one.volumes.locks.everywhere(share, digest("pvc-1"), "pvc-1"), refused("ABORTED"):
            two.create()
        file = share.folder("locks") / digest("pvc-1")
        file.write_text(json.dumps({"owner": "dead", "until": 0}))
    two.create()
    assert not file.exists()


def test_nft017_one_call_per_volume_in_one_process(driver):
    with driver.volumes.locks.here("pvc-1"), refused("ABORTED"):
        driver.create()
    driver.create()


def test_nfd015_nfd016_no_shared_or_nested_directories(tmp_path, driver):
    driver.create("a", {**CLASS, "subDir": "team"})
    for sub_dir in ("team", "team/inner", "tea"):
        if sub_dir == "tea":
            driver.create("c", {**CLASS, "subDir": sub_dir})
        else:
            with refused("INVALID_ARGUMENT"):
                driver.create("b", {**CLASS, "subDir": sub_dir})
    shared = Driver(tmp_path / "shared", allow_shared_directories=True)
    ids = [shared.create(n, {**CLASS, "subDir": "team"}).volume_id for n in ("a", "b")]
    shared.delete(ids[0])
    assert shared.names() == ["team"]
    shared.delete(ids[1])
    assert shared.names() == []


def test_nfd011_nfd012_ids_of_strange_and_long_names(driver):
    odd = driver.create("o", {**CLASS, "subDir": "a#b%c"}).volume_id
    assert VolumeId.parse(odd).sub_dir == "a#b%c"
    name = "x" * 128
    volume = driver.create(name)
    assert len(volume.volume_id) <= 128
    assert driver.create(name) == volume
    driver.delete(volume.volume_id)
    driver.delete(volume.volume_id)
    assert driver.names() == ["a#b%c"]
    assert len(SnapshotId("s", "d", name, name).text) <= 128


@pytest.mark.parametrize(
    ("required", "limit", "code"),
    [(10, 5, "OUT_OF_RANGE"), (-1, 0, "OUT_OF_RANGE")],
)
def test_nf022_sizes_that_contradict(driver, required, limit, code):
    with refused(code):
        driver.volumes.create_volume(
            csi.CreateVolumeRequest(
                name="x",
                parameters=CLASS,
                volume_capabilities=[capability()],
                capacity_range=csi.CapacityRange(required_bytes=required, limit_bytes=limit),
            )
        )


def test_nf023_deletion_goes_through_the_trash(tmp_path):
    driver = Driver(tmp_path, delete_in_background=True)
    volume = driver.create()
    (driver.share / "pvc-1" / "file").write_text("x")
    driver.delete(volume.volume_id)
    assert driver.names() == []
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and "_empty_trash" in str(thread):
            thread.join(10)


def test_nf024_nf025_validate_and_expand(driver):
    volume = driver.create()
    confirmed = driver.volumes.validate_volume_capabilities(
        csi.ValidateVolumeCapabilitiesRequest(
            volume_id=volume.volume_id, volume_capabilities=[capability()]
        )
    ).confirmed
    assert list(confirmed.volume_capabilities) == [capability()]
    expand = csi.ControllerExpandVolumeRequest(
        volume_id=volume.volume_id, capacity_range=csi.CapacityRange(required_bytes=4096)
    )
    answer = driver.volumes.controller_expand_volume(expand)
    assert (answer.capacity_bytes, answer.node_expansion_required) == (4096, False)
    with refused("ALREADY_EXISTS"):
        driver.create(size=1024)
    expand.volume_id = "nfs1#data#nobody##"
    with refused("NOT_FOUND"):
        driver.volumes.controller_expand_volume(expand)


# Snapshots and clones.


def fill(place):
    (place / "deep").mkdir()
    (place / "deep" / "file").write_text("content")
    (place / "deep" / "file").chmod(0o640)
    (place / "link").symlink_to("deep/file")
    with (place / "sparse").open("wb") as file:
        file.truncate(1 << 22)
        file.seek(1 << 21)
        file.write(b"x")


def tree(place):
    found = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file():
            found[name] = (path.read_bytes(), path.stat().st_mode, int(path.stat().st_mtime))
        else:
            found[name] = path.stat().st_mode
    return found


@pytest.mark.parametrize("compress", [True, False])
def test_nft050_nft055_snapshot_and_restore(tmp_path, compress):
    driver = Driver(tmp_path, compress_snapshots=compress)
    volume = driver.create(size=1 << 23)
    fill(driver.share / "pvc-1")
    taken = driver.snapshot("snap", volume.volume_id)
    assert (taken.size_bytes, taken.ready_to_use) == (1 << 23, True)
    other = Driver(tmp_path, compress_snapshots=not compress)
    restored = other.create("pvc-2", size=1 << 23, **from_snapshot(taken.snapshot_id))
    assert restored.content_source.snapshot.snapshot_id == taken.snapshot_id
    assert tree(driver.share / "pvc-2") == tree(driver.share / "pvc-1")
    with refused("OUT_OF_RANGE"):
        other.create("pvc-3", size=1024, **from_snapshot(taken.snapshot_id))


def test_nft051_nft053_a_snapshot_is_taken_once(driver, monkeypatch):
    volume = driver.create()
    (driver.share / "pvc-1" / "file").write_text("first")
    monkeypatch.setattr("examples.nfs_csi_driver.content.os.fsync", _die)
    with pytest.raises(KeyboardInterrupt):
        driver.snapshot("snap", volume.volume_id)
    monkeypatch.undo()
    first = driver.snapshot("snap", volume.volume_id)
    (driver.share / "pvc-1" / "file").write_text("second")
    assert driver.snapshot("snap", volume.volume_id) == first
    driver.create("pvc-2", **from_snapshot(first.snapshot_id))
    assert (driver.share / "pvc-2" / "file").read_text() == "first"


def _die(*_):
    raise KeyboardInterrupt


def test_nft052_nft057_same_name_other_source_and_deletion(driver):
    one, two = driver.create("a"), driver.create("b")
    taken = driver.snapshot("snap", one.volume_id)
    with refused("ALREADY_EXISTS"):
        driver.snapshot("snap", two.volume_id)
    for snapshot_id in (taken.snapshot_id, taken.snapshot_id, "nonsense"):
        driver.snapshots.delete_snapshot(csi.DeleteSnapshotRequest(snapshot_id=snapshot_id))
    with refused("NOT_FOUND"):
        driver.create("c", **from_snapshot(taken.snapshot_id))


def test_nft056_snapshot_parameters(driver):
    volume = driver.create()
    metadata = {"csi.storage.k8s.io/volumesnapshot/name": "s"}
    taken = driver.snapshot("one", volume.volume_id, parameters={**metadata, "share": "/other"})
    assert taken.snapshot_id.startswith("nfs1#other#one#")
    with refused("INVALID_ARGUMENT"):
        driver.snapshot("two", volume.volume_id, parameters={"colour": "red"})


def test_old_snapshots_can_be_restored(driver):
    """NFD-022, NF-054: the reference's layout."""
    driver.create()
    (driver.share / "old").mkdir()
    with tarfile.open(driver.share / "old" / "pvc-0.tar", "w") as tar:
        info = tarfile.TarInfo("./file")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    driver.create("pvc-2", **from_snapshot("nfs1#data#old#old#pvc-0"))
    assert (driver.share / "pvc-2" / "file").read_text() == "x"


def hostile(**fields):
    info = tarfile.TarInfo(fields.pop("name", "x"))
    for name, value in fields.items():
        setattr(info, name, value)
    return info


@pytest.mark.parametrize(
    "member",
    [
        pytest.param(hostile(name="../x"), id="NFT-054 parent"),
        pytest.param(hostile(name="/x"), id="NFT-054 absolute"),
        pytest.param(hostile(type=tarfile.SYMTYPE, linkname="../../etc"), id="NFT-054 link out"),
        pytest.param(hostile(type=tarfile.SYMTYPE, linkname="/etc"), id="absolute link"),
        pytest.param(hostile(type=tarfile.CHRTYPE), id="device"),
    ],
)
def test_hostile_archives(tmp_path, member):
    archive, target = tmp_path / "a.tar.gz", tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    with gzip.open(archive, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(member)
    with refused("INTERNAL"):
        content.unpack(archive, target)
    assert list(target.iterdir()) == []
    assert [one.name for one in (tmp_path / "deep").iterdir()] == ["target"]


def test_nft058_nft059_clones(driver):
    volume = driver.create()
    fill(driver.share / "pvc-1")
    copy = driver.create("pvc-2", **from_volume(volume.volume_id))
    assert copy.content_source.volume.volume_id == volume.volume_id
    assert tree(driver.share / "pvc-2") == tree(driver.share / "pvc-1")
    assert (driver.share / "pvc-2" / "sparse").stat().st_blocks * 512 < 1 << 21
    (driver.share / "pvc-2" / "deep" / "file").write_text("changed")
    # NFD-002: a repeated call must not copy over live data.
    driver.create("pvc-2", **from_volume(volume.volume_id))
    assert (driver.share / "pvc-2" / "deep" / "file").read_text() == "changed"
    for source in (from_volume("nfs1#data#nobody##"), from_volume("x"), from_snapshot("x")):
        with refused("NOT_FOUND"):
            driver.create("pvc-3", **source)


def test_nf053_snapshots_by_pages(tmp_path):
    driver = Driver(tmp_path, default_server="nfs1", default_share="/data")
    one, two = driver.create("a"), driver.create("b")
    ids = [driver.snapshot(f"s{n}", one.volume_id).snapshot_id for n in range(3)]
    ids.append(driver.snapshot("other", two.volume_id).snapshot_id)

    def listed(**fields):
        answer = driver.snapshots.list_snapshots(csi.ListSnapshotsRequest(**fields))
        return [entry.snapshot.snapshot_id for entry in answer.entries], answer.next_token

    assert listed() == (ids, "")
    assert listed(max_entries=3) == (ids[:3], "3")
    assert listed(max_entries=3, starting_token="3") == (ids[3:], "")
    assert listed(snapshot_id=ids[1]) == ([ids[1]], "")
    assert listed(source_volume_id=two.volume_id) == ([ids[3]], "")
    assert listed(snapshot_id="nobody") == ([], "")
    with refused("ABORTED"):
        listed(starting_token="nonsense")


# Nodes.


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


# Identity and the article's profile.


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
