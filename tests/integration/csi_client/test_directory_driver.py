"""The example driver follows the CSI standard and records the facts that tests rely on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from csi_client import messages as csi
from csi_client._generated import csi_pb2_grpc
from csi_client.client import CsiClient
from csi_client.errors import CsiError
from tests.support.csi_driver import DirectoryDriver
from tests.support.waiting import wait_until

MIB = 2**20


@pytest.fixture
def driver() -> Iterator[DirectoryDriver]:
    with DirectoryDriver(arguments=["--topology", "zone=z1"]) as driver:
        yield driver


@pytest.fixture
def client(driver: DirectoryDriver) -> Iterator[CsiClient]:
    client = driver.client()
    yield client
    client.close()


@pytest.fixture
def controller(driver: DirectoryDriver) -> Iterator[csi_pb2_grpc.ControllerStub]:
    with grpc.insecure_channel(f"unix:{driver.address}") as channel:
        yield csi_pb2_grpc.ControllerStub(channel)


def request(
    name: str, size: int = MIB, zone: str = "", **fields: object
) -> csi.CreateVolumeRequest:
    message = csi.CreateVolumeRequest(
        name=name,
        capacity_range=csi.CapacityRange(required_bytes=size),
        volume_capabilities=[
            csi.VolumeCapability(mount=csi.VolumeCapability.MountVolume()),
        ],
        **fields,
    )
    if zone:
        message.accessibility_requirements.preferred.add(segments={"zone": zone})
    return message


def status(call: object, *arguments: object, **options: object) -> str:
    assert callable(call)
    with pytest.raises(CsiError) as caught:
        call(*arguments, **options)
    return caught.value.code_name


def test_same_name_same_volume_over_sigkill(driver: DirectoryDriver, client: CsiClient) -> None:
    volume = client.create_volume(request("a")).volume
    (driver.root / "volumes" / volume.volume_id / "data" / "file").write_text("content")
    driver.kill()
    driver.start()
    client.wait_connected(5)
    assert client.create_volume(request("a")).volume == volume
    assert [c.code for c in driver.calls("CreateVolume")] == ["OK", "OK"]


def test_same_name_other_request_is_refused(client: CsiClient) -> None:
    client.create_volume(request("a"))
    assert status(client.create_volume, request("a", 2 * MIB)) == "AlreadyExists"


def test_clone_and_snapshot_copy_the_content(
    driver: DirectoryDriver, client: CsiClient, controller: csi_pb2_grpc.ControllerStub
) -> None:
    source = client.create_volume(request("source")).volume.volume_id
    volumes = driver.root / "volumes"
    (volumes / source / "data" / "file").write_text("content")
    ask = csi.CreateSnapshotRequest(name="snap", source_volume_id=source)
    snapshot = controller.CreateSnapshot(ask, timeout=5).snapshot
    assert controller.CreateSnapshot(ask, timeout=5).snapshot == snapshot
    contents = [
        csi.VolumeContentSource(volume=csi.VolumeContentSource.VolumeSource(volume_id=source)),
        csi.VolumeContentSource(
            snapshot=csi.VolumeContentSource.SnapshotSource(snapshot_id=snapshot.snapshot_id)
        ),
    ]
    client.delete_volume("unknown", {})
    for number, content in enumerate(contents):
        copy = client.create_volume(request(f"copy-{number}", volume_content_source=content)).volume
        assert copy.content_source == content
        assert (volumes / copy.volume_id / "data" / "file").read_text() == "content"
    missing = csi.VolumeContentSource(
        snapshot=csi.VolumeContentSource.SnapshotSource(snapshot_id="none")
    )
    assert status(client.create_volume, request("x", volume_content_source=missing)) == "NotFound"
    listed = controller.ListSnapshots(csi.ListSnapshotsRequest(), timeout=5)
    assert [entry.snapshot for entry in listed.entries] == [snapshot]
    for _ in range(2):
        controller.DeleteSnapshot(
            csi.DeleteSnapshotRequest(snapshot_id=snapshot.snapshot_id), timeout=5
        )


def test_capacity_by_segment(driver: DirectoryDriver, client: CsiClient) -> None:
    driver.set_capacity(total_bytes=10 * MIB, segments={"zone=z1": 3 * MIB})

    def free(zone: str) -> int:
        ask = csi.GetCapacityRequest(accessible_topology=csi.Topology(segments={"zone": zone}))
        return client.get_capacity(ask).available_capacity

    volume = client.create_volume(request("a", 2 * MIB, zone="z1")).volume
    assert [dict(t.segments) for t in volume.accessible_topology] == [{"zone": "z1"}]
    assert (free("z1"), free("z2")) == (MIB, 8 * MIB)
    assert client.get_capacity(csi.GetCapacityRequest()).available_capacity == 8 * MIB
    assert status(client.create_volume, request("b", 2 * MIB, zone="z1")) == "ResourceExhausted"
    assert client.create_volume(request("b", 2 * MIB, zone="z2")).volume.volume_id


def test_topology_of_the_node(client: CsiClient) -> None:
    assert "VOLUME_ACCESSIBILITY_CONSTRAINTS" in client.plugin_capabilities()
    assert dict(client.node_info().accessible_topology.segments) == {"zone": "z1"}


def test_validate_volume_capabilities(
    client: CsiClient, controller: csi_pb2_grpc.ControllerStub
) -> None:
    volume = client.create_volume(request("a")).volume
    ask = csi.ValidateVolumeCapabilitiesRequest(
        volume_id=volume.volume_id, volume_capabilities=request("a").volume_capabilities
    )
    assert controller.ValidateVolumeCapabilities(ask, timeout=5).HasField("confirmed")
    ask.volume_capabilities[0].block.SetInParent()
    assert not controller.ValidateVolumeCapabilities(ask, timeout=5).HasField("confirmed")


def test_failures_are_counted_over_sigkill(driver: DirectoryDriver, client: CsiClient) -> None:
    driver.set_rules({"method": "CreateVolume", "code": "ABORTED", "times": 2, "match": "a*"})
    assert client.create_volume(request("other")).volume.volume_id
    assert status(client.create_volume, request("abc")) == "Aborted"
    driver.kill()
    driver.start()
    client.wait_connected(5)
    assert status(client.create_volume, request("abc")) == "Aborted"
    assert client.create_volume(request("abc")).volume.volume_id


def test_overlap_of_awaited_calls_is_recorded(driver: DirectoryDriver, client: CsiClient) -> None:
    """The driver records that a create and a delete of
    one volume overlap. csi-fleet must prevent that.
    """
    volume_id = client.create_volume(request("a")).volume.volume_id
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 1})
    thread = threading.Thread(target=client.create_volume, args=[request("a")])
    thread.start()
    wait_until(lambda: len(driver.calls("CreateVolume")) == 2, 5, "the second call came")
    client.delete_volume(volume_id, {})
    thread.join()
    (overlapping,) = driver.concurrent_calls()
    assert overlapping.method == "DeleteVolume"


def test_overlap_with_an_abandoned_call_is_no_fault(
    driver: DirectoryDriver, client: CsiClient
) -> None:
    """The overlap with a call after its deadline is not
    reported as a fault, because the driver may continue.
    """
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 1.0})
    timeout = {"timeout_seconds": 0.2}
    assert status(client.create_volume, request("a"), **timeout) == "DeadlineExceeded"
    assert status(client.create_volume, request("a"), **timeout) == "DeadlineExceeded"
    assert driver.calls("CreateVolume")[1].overlaps
    assert driver.concurrent_calls() == []
    driver.set_rules({"method": "CreateVolume", "abort_pending": True})
    assert status(client.create_volume, request("a")) == "Aborted"


def test_random_delay_and_unfinished_calls(driver: DirectoryDriver, client: CsiClient) -> None:
    driver.set_rules({"method": "CreateVolume", "delay_seconds": [0.1, 0.2]})
    started = time.monotonic()
    client.create_volume(request("a"))
    assert 0.1 <= time.monotonic() - started < 2
    driver.set_rules({"method": "CreateVolume", "hang": True, "after_work": True})
    assert status(client.create_volume, request("b"), timeout_seconds=0.3) == "DeadlineExceeded"
    assert {volume["name"] for volume in driver.volumes().values()} == {"a", "b"}
    done = wait_until(
        lambda: [c for c in driver.calls("CreateVolume") if c.code == "CANCELLED"], 5, "end"
    )
    assert done[0].client_waits is False


def test_unknown_capability_stops_the_start() -> None:
    driver = DirectoryDriver(arguments=["--capabilities", "FLY"])
    with pytest.raises(RuntimeError, match="unknown capabilities: FLY"), driver:
        pass
