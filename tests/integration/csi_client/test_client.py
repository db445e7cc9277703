"""CsiClient against the example driver, over a real socket."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from csi_client import messages as csi
from csi_client._generated import csi_pb2_grpc
from csi_client.client import CsiClient
from csi_client.errors import (
    CsiError,
    NoStatusError,
    UndecodableAnswerError,
    UnusableAnswerError,
)
from tests.support.csi_driver import DirectoryDriver, create_request
from tests.support.waiting import wait_until

SECRET = "hunter2-very-secret"


def request(name: str, **fields: object) -> csi.CreateVolumeRequest:
    message = create_request(name)
    message.capacity_range.required_bytes = 4096
    message.MergeFrom(csi.CreateVolumeRequest(**fields))
    return message


@pytest.fixture(scope="module")
def shared_driver() -> Iterator[DirectoryDriver]:
    with DirectoryDriver(arguments=["--record-secret-digests"]) as driver:
        yield driver


@pytest.fixture
def driver(shared_driver: DirectoryDriver) -> Iterator[DirectoryDriver]:
    yield shared_driver
    shared_driver.set_rules()
    if not shared_driver.is_running:
        shared_driver.start()


@pytest.fixture
def observed() -> list[tuple[str, str, float]]:
    return []


@pytest.fixture
def client(driver: DirectoryDriver, observed: list[tuple[str, str, float]]) -> Iterator[CsiClient]:
    client = driver.client(observer=lambda *call: observed.append(call))
    assert client.wait_connected(10)
    yield client
    client.close()


def test_handshake(driver: DirectoryDriver, client: CsiClient) -> None:
    assert client.probe()
    assert client.plugin_info() == (driver.name, "1.0.0")
    assert client.plugin_capabilities() == {"CONTROLLER_SERVICE"}
    assert {"CREATE_DELETE_VOLUME", "CLONE_VOLUME"} <= client.controller_capabilities()
    assert client.node_info().node_id == "node-1"


def test_service_names_are_those_of_the_generated_stubs(
    driver: DirectoryDriver, client: CsiClient
) -> None:
    """The client's hand-written method paths are those of the standard."""
    with grpc.insecure_channel(f"unix:{driver.address}") as channel:
        answer = csi_pb2_grpc.ControllerStub(channel).CreateVolume(request("stub"), timeout=5)
    assert client.create_volume(request("stub")) == answer


def test_p004_probe_not_ready(driver: DirectoryDriver, client: CsiClient) -> None:
    driver.set_rules({"method": "Probe", "answer": {"ready": False}})
    assert client.probe() is False
    driver.set_rules({"method": "Probe", "answer": {"ready": True}})
    assert client.probe() is True


def test_p005_empty_driver_name(driver: DirectoryDriver, client: CsiClient) -> None:
    driver.set_rules({"method": "GetPluginInfo", "answer": {}})
    with pytest.raises(NoStatusError, match=r"^driver name is empty$"):
        client.plugin_info()


def test_create_and_delete(driver: DirectoryDriver, client: CsiClient) -> None:
    volume = client.create_volume(request("pvc-1")).volume
    assert client.create_volume(request("pvc-1")).volume == volume
    assert driver.volumes()[volume.volume_id]["name"] == "pvc-1"
    client.delete_volume(volume.volume_id, {})
    client.delete_volume(volume.volume_id, {})
    assert volume.volume_id not in driver.volumes()


def test_list_volumes_by_pages(driver: DirectoryDriver, client: CsiClient) -> None:
    for number in range(5):
        client.create_volume(request(f"page-{number}"))
    pages = list(client.list_volumes(max_entries=2))
    ids = [entry.volume.volume_id for page in pages for entry in page.entries]
    assert all(len(page.entries) <= 2 for page in pages)
    assert sorted(ids) == sorted(driver.volumes())


def test_endless_page_tokens_end(driver: DirectoryDriver, client: CsiClient) -> None:
    driver.set_rules(
        {"method": "ListVolumes", "skip_work": True, "answer": {"next_token": "again"}}
    )
    with pytest.raises(UndecodableAnswerError, match="repeats a page token"):
        list(client.list_volumes())


@pytest.mark.parametrize("status", [s for s in grpc.StatusCode if s is not grpc.StatusCode.OK])
def test_every_status_keeps_number_and_text(
    driver: DirectoryDriver, client: CsiClient, status: grpc.StatusCode
) -> None:
    driver.set_rules({"method": "CreateVolume", "code": status.name, "message": "no: ü"})
    with pytest.raises(CsiError) as caught:
        client.create_volume(request("pvc-status"))
    assert (caught.value.code, caught.value.details) == (status.value[0], "no: ü")
    assert caught.value.rpc == "/csi.v1.Controller/CreateVolume"


def test_p411_deadline(driver: DirectoryDriver, client: CsiClient) -> None:
    driver.set_rules({"method": "CreateVolume", "hang": True})
    started = time.monotonic()
    with pytest.raises(CsiError) as caught:
        client.create_volume(request("pvc-hang"), timeout_seconds=0.3)
    assert 0.25 < time.monotonic() - started < 2
    text = "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    assert str(caught.value) == text
    assert not caught.value.is_final


def test_p413_default_deadline_holds_for_every_call(driver: DirectoryDriver) -> None:
    driver.set_rules({"hang": True})
    client = driver.client(timeout_seconds=0.2)
    calls = [
        client.probe,
        client.plugin_info,
        client.plugin_capabilities,
        client.controller_capabilities,
        client.node_info,
        lambda: client.create_volume(request("x")),
        lambda: client.delete_volume("x", {}),
        lambda: client.get_capacity(csi.GetCapacityRequest()),
        lambda: list(client.list_volumes()),
    ]
    for call in calls:
        with pytest.raises(CsiError) as caught:
            call()
        assert caught.value.code_name == "DeadlineExceeded"
    client.close()


def test_killed_driver_ends_the_call_at_once_and_is_found_again(
    driver: DirectoryDriver, client: CsiClient
) -> None:
    """The call fails with UNAVAILABLE at once; later calls find the volume after the restart."""
    before = client.create_volume(request("pvc-before")).volume
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 30})
    errors: list[tuple[CsiError, float]] = []

    def create() -> None:
        try:
            client.create_volume(request("pvc-killed"), timeout_seconds=30)
        except CsiError as error:
            errors.append((error, time.monotonic()))

    thread = threading.Thread(target=create)
    thread.start()
    wait_until(
        lambda: any(c.request["name"] == "pvc-killed" for c in driver.calls("CreateVolume")),
        5,
        "the call is in the driver",
    )
    driver.kill()
    killed_at = time.monotonic()
    thread.join(5)
    ((error, ended_at),) = errors
    assert error.code_name == "Unavailable"
    assert not error.is_final
    assert ended_at - killed_at < 1
    wait_until(lambda: not client.is_connected, 5, "the loss is noticed")
    assert client.connection_losses == 1
    with pytest.raises(CsiError) as caught:
        client.probe()
    assert caught.value.code_name == "Unavailable"

    driver.set_rules()
    driver.start()
    ready_at = time.monotonic()
    # The connection recovers without a call.
    wait_until(lambda: client.is_connected, 5, "connected again", interval_seconds=0.01)
    assert time.monotonic() - ready_at < 2
    assert client.create_volume(request("pvc-before")).volume == before


def test_restart_without_calls_is_noticed(driver: DirectoryDriver, client: CsiClient) -> None:
    """P-003: the loss is counted without a call.

    A caller that stores capabilities must know that the driver may have changed.
    """
    losses = client.connection_losses
    driver.kill()
    driver.start()
    wait_until(lambda: client.connection_losses == losses + 1, 5, "the loss is counted")
    wait_until(lambda: client.is_connected, 5, "connected again")
    assert client.probe()


def test_lost_answer_leaves_the_volume(driver: DirectoryDriver, client: CsiClient) -> None:
    driver.set_rules(
        {"method": "CreateVolume", "after_work": True, "code": "UNAVAILABLE", "times": 1}
    )
    with pytest.raises(CsiError):
        client.create_volume(request("pvc-lost"))
    assert "pvc-lost" in {volume["name"] for volume in driver.volumes().values()}
    assert client.create_volume(request("pvc-lost")).volume.volume_id in driver.volumes()


def test_answer_with_bad_utf8_is_a_clear_error(driver: DirectoryDriver, client: CsiClient) -> None:
    driver.answer_with("CreateVolume", b"\x0a\x04\x12\x02\xff\xfe")
    with pytest.raises(UndecodableAnswerError) as caught:
        client.create_volume(request("pvc-utf8"))
    assert str(caught.value) == (
        "rpc error: code = Internal desc = "
        "the driver's response could not be decoded as csi.v1.CreateVolumeResponse"
    )
    assert not caught.value.is_final


def test_answer_of_garbage_is_a_clear_error(driver: DirectoryDriver, client: CsiClient) -> None:
    driver.answer_with("DeleteVolume", b"\xff\xff\xff")
    with pytest.raises(UndecodableAnswerError):
        client.delete_volume("v", {})


def test_d002_an_answer_without_volume_is_refused_here(
    driver: DirectoryDriver, client: CsiClient
) -> None:
    driver.answer_with("CreateVolume", csi.CreateVolumeResponse())
    with pytest.raises(UnusableAnswerError, match="CreateVolume with an unusable volume"):
        client.create_volume(request("pvc-empty"))


def test_answers_above_grpcs_default_limit(driver: DirectoryDriver, client: CsiClient) -> None:
    """10 MB arrive and are refused because of their content, not because of their length."""
    volume = csi.Volume(volume_id="v", volume_context={"k": "x" * 10_000_000})
    driver.answer_with("CreateVolume", csi.CreateVolumeResponse(volume=volume))
    with pytest.raises(UnusableAnswerError, match="10000001 bytes"):
        client.create_volume(request("pvc-big"))


def test_d024_answer_above_our_limit_is_no_full_pool(
    driver: DirectoryDriver, client: CsiClient
) -> None:
    volume = csi.Volume(volume_id="v", volume_context={"k": "x" * 17 * 1024 * 1024})
    driver.answer_with("CreateVolume", csi.CreateVolumeResponse(volume=volume))
    with pytest.raises(CsiError) as caught:
        client.create_volume(request("pvc-huge"))
    assert caught.value.code_name == "ResourceExhausted"
    assert caught.value.from_transport
    assert not caught.value.is_final


def test_big_request_is_sent(driver: DirectoryDriver, client: CsiClient) -> None:
    client.create_volume(request("pvc-wide", parameters={"k": "x" * 6_000_000}))
    assert client.connection_losses == 0


def test_d024_long_status_text_keeps_its_code(driver: DirectoryDriver, client: CsiClient) -> None:
    """A long status text does not change the status code.

    With gRPC's own metadata limit it would become RESOURCE_EXHAUSTED, which means rescheduling.
    """
    driver.set_rules({"method": "CreateVolume", "code": "ABORTED", "message": "x" * 40_000})
    with pytest.raises(CsiError) as caught:
        client.create_volume(request("pvc-text"))
    assert (caught.value.code_name, len(caught.value.details)) == ("Aborted", 40_000)


def test_p011_observer_sees_each_call(
    driver: DirectoryDriver, client: CsiClient, observed: list[tuple[str, str, float]]
) -> None:
    driver.set_rules({"method": "CreateVolume", "code": "OUT_OF_RANGE", "delay_seconds": 0.2})
    client.probe()
    with pytest.raises(CsiError):
        client.create_volume(request("pvc-seen"))
    assert [call[:2] for call in observed] == [
        ("/csi.v1.Identity/Probe", "OK"),
        ("/csi.v1.Controller/CreateVolume", "OutOfRange"),
    ]
    assert 0.2 <= observed[1][2] < 2


def test_no_secret_in_log_error_or_its_chain(
    driver: DirectoryDriver, client: CsiClient, caplog: pytest.LogCaptureFixture
) -> None:
    """P-012: no log, error or chained error contains a secret, even if the driver's status does."""
    caplog.set_level(logging.DEBUG, "csi_client")
    driver.set_rules(
        {"method": "CreateVolume", "code": "UNAUTHENTICATED", "message": f"bad {SECRET}!"}
    )
    with pytest.raises(CsiError) as caught:
        client.create_volume(request("pvc-secret", secrets={"password": SECRET}))
    assert caught.value.details == "bad ***stripped***!"
    chain = [caught.value, caught.value.__cause__, caught.value.__context__]
    logged = [str(vars(record)) for record in caplog.records]
    assert len(logged) == 2
    assert not [text for text in [*map(repr, chain), *logged] if SECRET in text]
    call = next(c for c in driver.calls("CreateVolume") if c.request["name"] == "pvc-secret")
    digest = hashlib.sha256(json.dumps({"password": SECRET}).encode()).hexdigest()
    assert (call.secrets_arrived, call.secrets_sha256) == (True, digest)


@pytest.mark.parametrize(
    ("level", "expected"), [("DEBUG", ["GRPC call", "GRPC response"]), ("INFO", [])]
)
def test_call_and_answer_are_logged(
    client: CsiClient, caplog: pytest.LogCaptureFixture, level: str, expected: list[str]
) -> None:
    """P-012: the log contains request and reply, but no secret."""
    caplog.set_level(level, "csi_client")
    volume = client.create_volume(request("pvc-logged", secrets={"password": SECRET})).volume
    assert [record.msg for record in caplog.records] == expected
    logged = "".join(str(vars(record)) for record in caplog.records)
    assert ("pvc-logged" in logged, volume.volume_id in logged) == (bool(expected),) * 2
    assert SECRET not in logged


def test_no_secret_comes_back_from_any_other_call(
    driver: DirectoryDriver, client: CsiClient
) -> None:
    """The method `call` removes secrets from status texts too.

    Attaching, snapshots and expansion use it.
    """
    method = "ControllerExpandVolume"
    driver.set_rules({"method": method, "code": "INTERNAL", "message": f"bad {SECRET}!"})
    asked = csi.ControllerExpandVolumeRequest(volume_id="v", secrets={"password": SECRET})
    with pytest.raises(CsiError) as caught:
        client.call(f"Controller/{method}", asked, csi.ControllerExpandVolumeResponse)
    assert caught.value.details == "bad ***stripped***!"


def test_the_drivers_record_holds_no_secret(driver: DirectoryDriver, client: CsiClient) -> None:
    client.delete_volume("v-none", {"password": SECRET})
    assert driver.calls("DeleteVolume")[-1].request["secrets"] == "***stripped***"
    assert driver.calls("DeleteVolume")[-1].secrets_arrived
    delete_lines = [x for x in driver.journal_text().splitlines() if '"DeleteVolume"' in x]
    assert delete_lines
    assert not [x for x in delete_lines if SECRET in x]


def test_calls_on_a_closed_client_have_no_status(driver: DirectoryDriver) -> None:
    client = driver.client()
    client.close()
    client.close()
    with pytest.raises(NoStatusError, match="connection to the driver is closed"):
        client.probe()


def test_close_ends_a_running_call(driver: DirectoryDriver, client: CsiClient) -> None:
    driver.set_rules({"method": "CreateVolume", "hang": True})
    timer = threading.Timer(0.3, client.close)
    timer.start()
    with pytest.raises(CsiError) as caught:
        client.create_volume(request("pvc-close"), timeout_seconds=20)
    assert caught.value.code_name == "Canceled"
    assert not caught.value.is_final
    timer.join()


def test_p002_waiting_for_a_missing_driver() -> None:
    driver = DirectoryDriver()
    client = driver.client()
    waits: list[float] = []
    started = time.monotonic()
    assert not client.wait_connected(
        0.5, lambda: waits.append(time.monotonic() - started), wait_every_seconds=0.2
    )
    assert len(waits) == 2
    assert not client.is_connected
    driver.start()
    assert client.wait_connected(5)
    client.close()
    driver.close()


def test_many_threads_share_one_client(driver: DirectoryDriver, client: CsiClient) -> None:
    ids: list[str] = []
    threads = [
        threading.Thread(
            target=lambda n=n: ids.append(client.create_volume(request(f"t-{n}")).volume.volume_id)
        )
        for n in range(32)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(set(ids)) == 32
    assert driver.concurrent_calls() == []
