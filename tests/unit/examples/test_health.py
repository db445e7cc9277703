"""What the example driver reports about its volumes, in the terms of CSI 1.12 and 1.13."""

from __future__ import annotations

import json

import pytest

from csi_client import messages as csi
from examples.directory_driver.attaching import Published
from examples.directory_driver.behaviour import Control
from examples.directory_driver.controller import DirectoryDriver
from examples.directory_driver.storage import DirectoryStore, StorageError, Volume

SLOW = {"status": "DEGRADED", "reason": "SlowDisk", "message": "a disk is slow"}


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a driver with two volumes, of which v-b is slow."""

    def made(*abilities):
        store = DirectoryStore(tmp_path)
        for name in ("v-a", "v-b"):
            store.add_volume(Volume(volume_id=name, name=name, capacity_bytes=1, created_at=0.0))
        path = tmp_path / "health.json"
        path.write_text(json.dumps({"v-b": [SLOW]}))
        return DirectoryDriver(
            "d",
            store,
            Control(tmp_path / "control.json"),
            abilities,
            published=Published(tmp_path),
            segments={},
            node_id="n",
            health=path,
        )

    return made


def test_a_list_has_the_volumes_with_a_condition(make):
    answer = make("LIST_VOLUME_HEALTH").controller_list_volume_health(
        csi.ControllerListVolumeHealthRequest()
    )
    assert [(one.volume_id, one.health_statuses[0].reason) for one in answer.entries] == [
        ("v-b", "SlowDisk")
    ]


def test_one_volume_is_healthy_or_not(make):
    driver = make("GET_VOLUME_HEALTH")
    found = [
        driver.controller_get_volume_health(csi.ControllerGetVolumeHealthRequest(volume_id=one))
        for one in ("v-a", "v-b")
    ]
    assert [len(one.volume_health.health_statuses) for one in found] == [0, 1]
    with pytest.raises(StorageError):
        driver.controller_get_volume_health(csi.ControllerGetVolumeHealthRequest(volume_id="v-c"))


def test_csi_1_12_has_a_condition_in_its_lists(make):
    driver = make("LIST_VOLUMES", "GET_VOLUME", "VOLUME_CONDITION")
    listed = driver.list_volumes(csi.ListVolumesRequest())
    assert [one.status.volume_condition.abnormal for one in listed.entries] == [False, True]
    one = driver.controller_get_volume(csi.ControllerGetVolumeRequest(volume_id="v-b"))
    assert one.status.volume_condition.message == "a disk is slow"


def test_without_the_capability_nothing_is_said(make):
    driver = make("LIST_VOLUMES")
    listed = driver.list_volumes(csi.ListVolumesRequest())
    assert not any(one.status.HasField("volume_condition") for one in listed.entries)
    with pytest.raises(StorageError):
        driver.controller_list_volume_health(csi.ControllerListVolumeHealthRequest())
