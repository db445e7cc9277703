"""The example driver attaches and grows volumes as the attacher and resizer tests require."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from csi_client import messages as csi
from examples.directory_driver.attaching import Published
from examples.directory_driver.behaviour import Control
from examples.directory_driver.controller import DirectoryDriver
from examples.directory_driver.storage import DirectoryStore, StorageError

ABILITIES = (
    *("CONTROLLER_SERVICE", "CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME", "LIST_VOLUMES"),
    *("EXPAND_VOLUME", "MODIFY_VOLUME", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT", "ONLINE"),
    "CREATE_DELETE_SNAPSHOT",
)
GROUP = "g"


@pytest.fixture
def driver(tmp_path):
    return make(tmp_path)


def make(root, abilities=(), **options):
    return DirectoryDriver(
        "d",
        DirectoryStore(root),
        Control(root / "control.json"),
        (*ABILITIES, *abilities),
        published=Published(root),
        segments={},
        node_id="n",
        **options,
    )


def capability(mode="SINGLE_NODE_WRITER"):
    return csi.VolumeCapability(
        mount=csi.VolumeCapability.MountVolume(),
        access_mode=csi.VolumeCapability.AccessMode(mode=mode),
    )


def volume_request(**changes):
    usual = {
        "name": "v",
        "volume_capabilities": [capability()],
        "parameters": {"tier": "old"},
        "mutable_parameters": {"iops": "1"},
        "capacity_range": csi.CapacityRange(required_bytes=2**30),
        "secrets": {"password": "one"},
    }
    return csi.CreateVolumeRequest(**usual | changes)


def new_volume(driver, name="v"):
    return driver.create_volume(volume_request(name=name)).volume.volume_id


def publish(driver, volume_id, node, mode="SINGLE_NODE_WRITER"):
    return driver.controller_publish_volume(
        csi.ControllerPublishVolumeRequest(
            volume_id=volume_id, node_id=node, volume_capability=capability(mode)
        )
    )


def nodes(driver):
    (entry,) = driver.list_volumes(csi.ListVolumesRequest()).entries
    return list(entry.status.published_node_ids)


def test_publication_outlives_the_process(driver, tmp_path):
    volume = new_volume(driver)
    publish(driver, volume, "n1")
    publish(driver, volume, "n1")
    assert nodes(make(tmp_path)) == ["n1"]
    driver.controller_unpublish_volume(
        csi.ControllerUnpublishVolumeRequest(volume_id=volume, node_id="n1")
    )
    assert nodes(driver) == []


def test_a_volume_of_one_node_is_refused_to_a_second(driver):
    volume = new_volume(driver)
    publish(driver, volume, "n1")
    with pytest.raises(StorageError) as refused:
        publish(driver, volume, "n2")
    assert refused.value.code == "FAILED_PRECONDITION"


def test_a_volume_of_many_nodes_goes_to_all_of_them(driver):
    volume = new_volume(driver)
    for node in ("n1", "n2"):
        publish(driver, volume, node, "MULTI_NODE_MULTI_WRITER")
    assert nodes(driver) == ["n1", "n2"]


def test_a_published_volume_is_not_deleted(driver):
    """A chaos test therefore detects a deletion that came too early."""
    volume = new_volume(driver)
    publish(driver, volume, "n1")
    with pytest.raises(StorageError, match="published to n1"):
        driver.delete_volume(csi.DeleteVolumeRequest(volume_id=volume))


def test_growth_is_kept(driver, tmp_path):
    volume = new_volume(driver)
    request = csi.ControllerExpandVolumeRequest(
        volume_id=volume, capacity_range=csi.CapacityRange(required_bytes=2**31)
    )
    assert driver.controller_expand_volume(request).capacity_bytes == 2**31
    (entry,) = make(tmp_path).list_volumes(csi.ListVolumesRequest()).entries
    assert entry.volume.capacity_bytes == 2**31


def test_growing_and_changing_side_by_side_lose_nothing(driver, tmp_path):
    """MR-011: the resizer sends both at once; neither may restore the other's old value."""
    volume_id = new_volume(driver)
    rounds = range(1, 101)

    def grow(number):
        driver.controller_expand_volume(
            csi.ControllerExpandVolumeRequest(
                volume_id=volume_id, capacity_range=csi.CapacityRange(required_bytes=number << 30)
            )
        )

    def change(number):
        driver.controller_modify_volume(
            csi.ControllerModifyVolumeRequest(
                volume_id=volume_id, mutable_parameters={str(number): "set"}
            )
        )

    with ThreadPoolExecutor(2) as pool:
        for number in rounds:
            both = [pool.submit(call, number) for call in (grow, change)]
            for one in both:
                one.result()
    volume = DirectoryStore(tmp_path).volume(volume_id)
    assert volume.capacity_bytes == rounds[-1] << 30
    assert set(volume.parameters) - {"tier"} == {str(number) for number in rounds}


def test_group_has_one_snapshot_per_volume(driver):
    volumes = [new_volume(driver, name) for name in ("a", "b")]
    request = csi.CreateVolumeGroupSnapshotRequest(name=GROUP, source_volume_ids=volumes)
    made = driver.create_volume_group_snapshot(request).group_snapshot
    again = driver.create_volume_group_snapshot(request).group_snapshot
    assert made == again
    assert [one.source_volume_id for one in made.snapshots] == volumes


OTHER_VOLUMES = {
    "other parameters": {"parameters": {"tier": "new"}},
    "no parameters": {"parameters": {}},
    "other mutable parameters": {"mutable_parameters": {"iops": "2"}},
    "another access mode": {"volume_capabilities": [capability("MULTI_NODE_MULTI_WRITER")]},
}


@pytest.mark.parametrize("changes", OTHER_VOLUMES.values(), ids=OTHER_VOLUMES)
def test_another_request_for_a_volume_is_refused_by_a_strict_driver_only(tmp_path, changes):
    strict, lenient = (make(tmp_path, is_strict=one) for one in (True, False))
    volume_id = new_volume(strict)
    with pytest.raises(StorageError, match="with other") as refused:
        strict.create_volume(volume_request(**changes))
    assert refused.value.code == "ALREADY_EXISTS"
    assert lenient.create_volume(volume_request(**changes)).volume.volume_id == volume_id


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"secrets": {"password": "two"}},
        {"capacity_range": csi.CapacityRange(required_bytes=2**29, limit_bytes=2**31)},
    ],
    ids=["the same", "other secrets", "a size that fits"],
)
def test_a_strict_driver_finds_what_fits(tmp_path, changes):
    strict = make(tmp_path, is_strict=True)
    volume_id = new_volume(strict)
    assert strict.create_volume(volume_request(**changes)).volume.volume_id == volume_id


def test_a_strict_driver_compares_with_the_request_not_with_what_was_changed_later(tmp_path):
    strict = make(tmp_path, is_strict=True)
    volume_id = new_volume(strict)
    strict.controller_modify_volume(
        csi.ControllerModifyVolumeRequest(
            volume_id=volume_id, mutable_parameters={"tier": "new", "iops": "2"}
        )
    )
    assert new_volume(strict) == volume_id


def in_zone(zone):
    requirement = csi.TopologyRequirement(requisite=[csi.Topology(segments={"zone": zone})])
    return volume_request(accessibility_requirements=requirement)


def test_a_strict_driver_refuses_a_volume_that_the_place_does_not_reach(tmp_path):
    strict = make(tmp_path, is_strict=True, abilities=("VOLUME_ACCESSIBILITY_CONSTRAINTS",))
    made = strict.create_volume(in_zone("a"))
    assert strict.create_volume(in_zone("a")) == made
    with pytest.raises(StorageError, match="exists in"):
        strict.create_volume(in_zone("b"))


def test_another_request_for_a_snapshot_is_refused_by_a_strict_driver_only(tmp_path):
    strict, lenient = (make(tmp_path, is_strict=one) for one in (True, False))
    volume_id = new_volume(strict)

    def cut(driver, **parameters):
        request = csi.CreateSnapshotRequest(
            name="s", source_volume_id=volume_id, parameters=parameters
        )
        return driver.create_snapshot(request).snapshot.snapshot_id

    made = cut(strict, tier="old")
    assert cut(strict, tier="old") == made
    with pytest.raises(StorageError, match="snapshot s exists with other parameters"):
        cut(strict, tier="new")
    assert cut(lenient, tier="new") == made


def test_another_request_for_a_group_is_refused_by_a_strict_driver(tmp_path):
    strict = make(tmp_path, is_strict=True)
    volumes = [new_volume(strict, name) for name in ("a", "b", "c")]

    def cut(volume_ids, **parameters):
        request = csi.CreateVolumeGroupSnapshotRequest(
            name=GROUP, source_volume_ids=volume_ids, parameters=parameters
        )
        return strict.create_volume_group_snapshot(request).group_snapshot.group_snapshot_id

    made = cut(volumes[:2])
    assert cut([volumes[1], volumes[0]]) == made
    with pytest.raises(StorageError, match="with other source volumes"):
        cut(volumes[2:])
    with pytest.raises(StorageError, match="with other parameters"):
        cut(volumes[:2], tier="new")


def test_another_publication_on_a_node_is_refused_by_a_strict_driver_only(tmp_path):
    def with_flags(driver, *flags, **context):
        asked = capability()
        asked.mount.mount_flags[:] = flags
        driver.controller_publish_volume(
            csi.ControllerPublishVolumeRequest(
                volume_id=volume_id, node_id="n1", volume_capability=asked, volume_context=context
            )
        )

    lenient = make(tmp_path / "lenient")
    volume_id = new_volume(lenient)
    with_flags(lenient)
    with_flags(lenient, "noatime")
    strict = make(tmp_path / "strict", is_strict=True)
    volume_id = new_volume(strict)
    with_flags(strict)
    with_flags(strict)
    with_flags(strict, directory="d")  # CSI requires this only for the capability and readonly
    with pytest.raises(StorageError, match="in another way"):
        with_flags(strict, "noatime")
