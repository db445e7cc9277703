"""The example driver's attaching and growing, as the tests of attacher and resizer rely on them."""

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
)
GROUP = "g"


@pytest.fixture
def driver(tmp_path):
    return make(tmp_path)


def make(root):
    return DirectoryDriver(
        "d",
        DirectoryStore(root),
        Control(root / "control.json"),
        ABILITIES,
        published=Published(root),
        segments={},
        node_id="n",
    )


def capability(mode="SINGLE_NODE_WRITER"):
    return csi.VolumeCapability(
        mount=csi.VolumeCapability.MountVolume(),
        access_mode=csi.VolumeCapability.AccessMode(mode=mode),
    )


def new_volume(driver, name="v"):
    request = csi.CreateVolumeRequest(name=name, volume_capabilities=[capability()])
    return driver.create_volume(request).volume.volume_id


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
    """So that chaos finds a deletion that came too early."""
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
    """MR-011: the resizer sends both at once; neither may write the other's old value back."""
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
    assert set(volume.parameters) == {str(number) for number in rounds}


def test_group_has_one_snapshot_per_volume(driver):
    volumes = [new_volume(driver, name) for name in ("a", "b")]
    request = csi.CreateVolumeGroupSnapshotRequest(name=GROUP, source_volume_ids=volumes)
    made = driver.create_volume_group_snapshot(request).group_snapshot
    again = driver.create_volume_group_snapshot(request).group_snapshot
    assert made == again
    assert [one.source_volume_id for one in made.snapshots] == volumes
