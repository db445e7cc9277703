"""The registration socket from its owner's point of view."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from csi_client import registration
from csi_client._generated.pluginregistration_pb2 import (
    RegistrationStatus,
    RegistrationStatusResponse,
)
from csi_client.registration import RegistrationError, RegistrationServer, ask, check_path
from tests.support.waiting import wait_until


def test_a_socket_that_was_removed_is_not_in_place(tmp_path: Path) -> None:
    """NR-014: a stop must not remove, or fail on, a socket that it did not create."""
    server = RegistrationServer(tmp_path / "reg.sock", "d", "/csi.sock", lambda *_: None)
    assert not server.is_in_place()
    server.start()
    assert server.is_in_place()
    server.path.unlink()
    assert not server.is_in_place()
    server.stop()


def test_a_stop_takes_away_what_it_put_there_and_nothing_else(tmp_path: Path) -> None:
    """NR-014: a newer server under the same name stays."""
    old, new = (
        RegistrationServer(tmp_path / "reg.sock", "d", "/csi.sock", lambda *_: None)
        for _ in range(2)
    )
    old.start()
    new.start()
    old.stop()
    assert new.is_in_place()
    new.stop()
    assert list(tmp_path.iterdir()) == []
    new.stop()


def test_a_name_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    """NRT-026: the hidden name next to it is shorter, but no client could use the long one."""
    server = RegistrationServer(tmp_path / ("n" * 108), "d", "/csi.sock", lambda *_: None)
    with pytest.raises(RegistrationError, match="longer than 107 bytes"):
        server.start()
    assert list(tmp_path.iterdir()) == []


def test_nr010_the_kubelet_asks_and_tells_the_outcome(tmp_path: Path) -> None:
    """NR-010: it returns type, name, endpoint and versions; only the owner may connect."""
    told: list[Any] = []
    server = RegistrationServer(
        tmp_path / "reg.sock", "d", "/csi.sock", lambda *status: told.append(status)
    )
    umask = os.umask(0o022)
    try:
        server.start()
        assert os.umask(0o022) == 0o022, "it belongs to the whole process"
    finally:
        os.umask(umask)
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o700
    info = ask(server.path, 10)
    assert (info.type, info.name, info.endpoint) == ("CSIPlugin", "d", "/csi.sock")
    assert list(info.supported_versions) == ["1.0.0"]
    with grpc.insecure_channel(f"unix:{server.path}") as channel:
        notify = channel.unary_unary(
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            RegistrationStatus.SerializeToString,
            RegistrationStatusResponse.FromString,
        )
        notify(RegistrationStatus(plugin_registered=False, error="no"), timeout=10)
        notify(RegistrationStatus(plugin_registered=True), timeout=10)
    assert told == [(False, "no"), (True, "")]
    server.stop()


def test_a_stopped_server_answers_nobody(tmp_path: Path) -> None:
    """This also applies to another hard link of its socket."""
    server = RegistrationServer(tmp_path / "reg.sock", "d", "/csi.sock", lambda *_: None)
    server.start()
    os.link(server.path, tmp_path / "other")
    assert ask(tmp_path / "other", 10).name == "d"
    server.stop()
    with pytest.raises(RegistrationError, match="UNAVAILABLE"):
        ask(tmp_path / "other", 10)


def test_a_socket_that_cannot_be_shown_is_served_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends with the error, and no client may find a half-started server."""
    server = RegistrationServer(tmp_path / "reg.sock", "d", "/csi.sock", lambda *_: None)

    def fail(_path: Path, _target: Path) -> None:
        os.link(server._hidden, tmp_path / "other")
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(RegistrationError, match=r"cannot offer .*reg\.sock: Permission denied"):
        server.start()

    def is_served() -> bool:
        try:
            return ask(tmp_path / "other", 10).name == "d"
        except RegistrationError:
            return False

    wait_until(lambda: not is_served(), 10, "its server ended")


def test_the_hidden_name_may_be_the_longer_one(tmp_path: Path) -> None:
    """NRT-026: both names have to be short enough, and the error mentions this."""
    folder = tmp_path / ("n" * (107 - len(os.fsencode(tmp_path)) - 3))
    folder.mkdir()
    server = RegistrationServer(folder / "s", "d", "/csi.sock", lambda *_: None)
    check_path(server.path)
    assert len(os.fsencode(server.path)) == 107
    with pytest.raises(RegistrationError, match="longer than 107 bytes"):
        server.start()


def test_nr013_only_a_socket_of_an_earlier_life_is_replaced(tmp_path: Path) -> None:
    """NR-013: any other file stays and is an error."""
    path = tmp_path / "reg.sock"
    path.write_text("mine")
    server = RegistrationServer(path, "d", "/csi.sock", lambda *_: None)
    with pytest.raises(RegistrationError, match="is not a socket; remove it"):
        server.start()
    assert path.read_text() == "mine"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    registration._remove_stale(path)
    assert not path.exists()
    registration._remove_stale(path)


def test_a_socket_that_goes_while_it_is_removed_is_no_error(tmp_path: Path) -> None:
    server = RegistrationServer(tmp_path / "reg.sock", "d", "/csi.sock", lambda *_: None)
    server.start()
    server.path.unlink()
    server.is_in_place = lambda: True  # type: ignore[method-assign]
    server.stop()


def test_nr040_each_question_has_a_connection_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """NR-040: each request also closes its connection, whatever the outcome."""
    closed: list[int] = []

    def call(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    channel = SimpleNamespace(unary_unary=lambda *_: call, close=lambda: closed.append(1))
    monkeypatch.setattr(registration.grpc, "insecure_channel", lambda *_, **__: channel)
    with pytest.raises(ZeroDivisionError):
        ask(Path("/run/reg.sock"), 1)
    assert closed == [1]
