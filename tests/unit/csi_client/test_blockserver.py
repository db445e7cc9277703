"""The edge of the block server: callers that send nothing, too much, or what is unreadable."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_client import blockserver
from csi_client._generated import snapshotmetadata_pb2 as api
from csi_client.blockserver import Asked, BlockServer, Ended, Limits, Planned, StreamRefused
from tests.support.certificates import make_ca, make_certificate

METHOD = "/snapshotmetadata.SnapshotMetadata/GetMetadataAllocated"
REQUEST = api.GetMetadataAllocatedRequest(security_token="t", snapshot_name="s")


class World:
    """A running server whose plan refuses everybody, and its callers."""

    def __init__(self, directory: Path) -> None:
        self.text = "no"
        self.ended: list[Ended] = []
        make_ca(directory, "ca")
        make_certificate(directory, "ca", "server", "localhost")
        self.certificate, self.key = directory / "server.pem", directory / "server.key"
        self.authority = (directory / "ca.pem").read_bytes()
        self.server = BlockServer(
            0,
            self.certificate,
            self.key,
            limits=Limits(1, 1, stream_seconds=60, driver_seconds=5),
            plan=self.plan,
            observe=self.ended.append,
        )
        listening = threading.Event()

        def on_listening(port: int) -> None:
            self.port = port
            listening.set()

        self.thread = threading.Thread(target=self.server.run, args=(on_listening, 0.1))
        self.thread.start()
        assert listening.wait(20)
        self.channels: list[grpc.Channel] = []

    def plan(self, asked: Asked) -> Planned:
        raise StreamRefused(grpc.StatusCode.UNAUTHENTICATED, self.text)

    def channel(self) -> grpc.Channel:
        options = [("csi-fleet.test", len(self.channels))]
        credentials = grpc.ssl_channel_credentials(self.authority)
        made = grpc.secure_channel(f"localhost:{self.port}", credentials, options)
        self.channels.append(made)
        return made

    def end_of(self, data: bytes) -> tuple[str, str]:
        call = self.channel().unary_stream(METHOD)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(data, timeout=20))
        return caught.value.code().name, caught.value.details()

    def stop(self) -> None:
        for one in self.channels:
            one.close()
        self.server.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockserver, "_REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(blockserver, "_MAX_CALLS", 3)


def test_callers_that_send_no_request_do_not_keep_their_places(impatient: None, world: World):
    held = threading.Event()

    def nothing() -> Iterator[bytes]:
        held.wait(20)
        yield from ()

    try:
        calls = [world.channel().stream_stream(METHOD)(nothing()) for _ in range(3)]
        assert {one.code() for one in calls} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        assert world.end_of(REQUEST.SerializeToString()) == ("UNAUTHENTICATED", "no")
    finally:
        held.set()
    assert len(world.ended) == 1, "nothing is logged about a caller that asks nothing"


def test_an_unreadable_request(world: World, caplog: pytest.LogCaptureFixture):
    assert world.end_of(b"\xff\xff") == ("INVALID_ARGUMENT", "the request is unreadable")
    empty = world.channel().stream_stream(METHOD)(iter(()))
    assert empty.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caplog.text == ""


def test_a_request_that_is_too_large(world: World):
    large = api.GetMetadataAllocatedRequest(security_token="t" * 100_000)
    assert world.end_of(large.SerializeToString())[0] == "RESOURCE_EXHAUSTED"
    assert world.ended == []


@pytest.mark.parametrize("letter", ["x", "\n", "é", "\U0001f600", "\ud800"])
def test_a_long_text_reaches_the_caller(world: World, letter: str):
    world.text = letter * 50_000
    code, text = world.end_of(REQUEST.SerializeToString())
    assert code == "UNAUTHENTICATED"
    assert text.endswith("(cut)")


def _truncate(certificate: Path, key: Path) -> None:
    certificate.write_bytes(b"")


def _garble(certificate: Path, key: Path) -> None:
    key.write_bytes(b"\x00\xff not a key")


def _remove(certificate: Path, key: Path) -> None:
    certificate.unlink()


@pytest.mark.parametrize("damage", [_truncate, _garble, _remove])
def test_a_broken_certificate_file_leaves_the_old_one_in_use(
    world: World, damage: Callable[[Path, Path], Any]
):
    before = world.certificate.read_bytes()
    damage(world.certificate, world.key)
    for _ in range(2):
        assert world.end_of(REQUEST.SerializeToString())[0] == "UNAUTHENTICATED"
    world.certificate.write_bytes(before)
    assert world.end_of(REQUEST.SerializeToString())[0] == "UNAUTHENTICATED"
