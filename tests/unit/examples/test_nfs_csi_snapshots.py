"""Snapshots and clones of the NFS CSI driver (NFT-050 to NFT-059)."""

from __future__ import annotations

import gzip
import io
import os
import tarfile

import pytest

from csi_client import messages as csi
from examples.nfs_csi_driver import content
from tests.support.nfs_driver import (
    Driver,
    from_snapshot,
    from_volume,
    refused,
)


@pytest.fixture
def driver(tmp_path):
    return Driver(tmp_path / "state")


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
    """NFD-022, NF-054: they have the layout of csi-driver-nfs."""
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
    # NFD-002: a repeated call must not overwrite live data.
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


def test_sec8_pipes_are_left_out_and_never_waited_for(driver):
    """A pipe without a writer once held a thread forever; 32 of them blocked the driver."""
    volume = driver.create()
    os.mkfifo(driver.share / "pvc-1" / "pipe")
    (driver.share / "pvc-1" / "file").write_text("x")
    driver.create("pvc-2", **from_volume(volume.volume_id))
    taken = driver.snapshot("snap", volume.volume_id)
    driver.create("pvc-3", **from_snapshot(taken.snapshot_id))
    for name in ("pvc-2", "pvc-3"):
        assert [one.name for one in (driver.share / name).iterdir()] == ["file"]


@pytest.mark.parametrize(
    "copy", [content.copy_tree, lambda a, b: content.pack(a, b, compress=False)]
)
def test_sec8_a_link_swapped_in_is_not_followed(tmp_path, monkeypatch, copy):
    """The owner may put a link there between the check of a name and its opening."""
    secret = tmp_path / "secret"
    secret.write_text("of the driver")
    source = tmp_path / "volume"
    source.mkdir()
    (source / "file").write_text("x")
    real = os.stat

    def look_then_swap(name, **options):
        found = real(name, **options)
        if name == "file" and options.get("dir_fd") is not None:
            (source / "file").unlink()
            (source / "file").symlink_to(secret)
        return found

    monkeypatch.setattr(os, "stat", look_then_swap)
    with pytest.raises(OSError, match="symbolic links"):
        copy(source, tmp_path / "copy")


def test_sec8_a_volume_with_links_to_anywhere_is_restored(driver):
    """Links are recreated as in the volume itself, and never followed."""
    volume = driver.create()
    (driver.share / "pvc-1" / "absolute").symlink_to("/etc/hosts")
    (driver.share / "pvc-1" / "up").symlink_to("../../else")
    taken = driver.snapshot("snap", volume.volume_id)
    driver.create("pvc-2", **from_snapshot(taken.snapshot_id))
    assert tree(driver.share / "pvc-2") == tree(driver.share / "pvc-1")
