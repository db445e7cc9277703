"""Volumes of the NFS CSI driver (section 6 of its spec, NFT-001 to NFT-020)."""

from __future__ import annotations

import json
import threading

import pytest

from csi_client import messages as csi
from examples.nfs_csi_driver.errors import RpcError
from examples.nfs_csi_driver.parameters import RESERVED, SnapshotId, VolumeId, digest
from examples.nfs_csi_driver.records import Share
from tests.support.nfs_driver import (
    CLASS,
    META,
    Driver,
    capability,
    from_volume,
    refused,
)


@pytest.fixture
def driver(tmp_path):
    return Driver(tmp_path / "state")


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


def test_nft019_mount_options_of_the_secret_are_used_for_deletion(driver, monkeypatch):
    """NF-026: the driver's own mount of the share uses them."""
    volume, used, opened = driver.create(), [], driver.mounter.opened

    def seen(server, share, options):
        used.append(list(options))
        return opened(server, share, options)

    monkeypatch.setattr(driver.mounter, "opened", seen)
    driver.delete(volume.volume_id, secrets={"mountOptions": "nfsvers=3"})
    assert used == [["nfsvers=3"]]
    assert driver.names() == []


def test_nft018_two_processes_one_volume(tmp_path):
    """The lease file in the share protects the volume; a dead owner's lease expires."""
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


@pytest.mark.parametrize(
    ("first", "policy", "second"),
    [
        pytest.param("db", "archive", "archived-db", id="another tenant's archive"),
        pytest.param("team-a-prod", "retain", "team-a-prod", id="a kept directory"),
    ],
)
def test_sec8_a_deleted_volumes_content_is_not_handed_out(driver, first, policy, second):
    volume = driver.create("pvc-1", parameters={**CLASS, "subDir": first, "onDelete": policy})
    (driver.share / first / "secret").write_text("data")
    driver.delete(volume.volume_id)
    with pytest.raises(RpcError):
        driver.create("pvc-2", parameters={**CLASS, "subDir": second})


def test_sec8_a_directory_of_nobody_stays_nobodys(driver):
    (driver.share / "home").mkdir(parents=True)
    with refused("ALREADY_EXISTS"):
        driver.create(parameters={**CLASS, "subDir": "home"})
    assert (driver.share / "home").is_dir()
