"""The password of a Redis is the one in its file at the moment of the login."""

from __future__ import annotations

import runpy
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest
import redis

from workers.queue import following
from workers.queue.following import (
    FollowingMixin,
    TcpConnection,
    current_password,
    reading_password,
)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        pytest.param(b"new\n", "new", id="the line"),
        pytest.param(b"new\nold\n", "new", id="the first of several"),
        pytest.param(b"of two words\n", "of two words", id="with blanks"),
        pytest.param(b"", "", id="being written"),
        pytest.param(b"\xff\xfe", "", id="no text"),
        pytest.param(None, "", id="being replaced"),
    ],
)
def test_a_password_file(tmp_path: Path, written: bytes | None, read: str) -> None:
    """Never an error: until the file can be read the password of before is used."""
    file = tmp_path / "password"
    if written is not None:
        file.write_bytes(written)
    assert current_password(str(file)) == read


def test_without_a_password_file_nothing_is_read() -> None:
    assert current_password("") == ""


def test_a_connection_looks_at_its_health_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library's own signature, but for the repetition."""
    asked = []
    base = redis.connection.Connection
    monkeypatch.setattr(base, "connect_check_health", lambda _, **how: asked.append(how))
    connection = TcpConnection()
    connection.connect_check_health()
    connection.connect_check_health(check_health=False, retry_socket_connect=True)
    once = {"retry_socket_connect": False}
    assert asked == [once | {"check_health": True}, once | {"check_health": False}]


def test_only_a_class_with_a_file_reads_one(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("of the file")
    assert reading_password(TcpConnection, "") is TcpConnection
    reading = reading_password(TcpConnection, str(file))
    assert issubclass(reading, TcpConnection)
    assert (reading.password_file, TcpConnection.password_file) == (str(file), "")
    assert reading.__name__ == "TcpConnection"


@pytest.mark.parametrize(
    ("written", "used"),
    [(b"new", "new"), (b"", "old"), (None, "old")],
    ids=["new", "empty", "none"],
)
def test_each_connection_logs_in_with_the_password_of_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bytes | None, used: str
) -> None:
    """While the file is being replaced the one of before is taken."""
    file = tmp_path / "password"
    if written is not None:
        file.write_bytes(written)
    sock = socket.socket()
    monkeypatch.setattr(redis.Connection, "_connect", lambda _self: sock)
    connection = reading_password(TcpConnection, str(file))(password="old")
    assert connection._connect() is sock
    sock.close()
    assert connection.password == used


class Server:
    """A connection whose server answers with an error."""

    error: redis.ResponseError
    is_connected = True

    def read_response(self) -> None:
        raise self.error

    def disconnect(self) -> None:
        self.is_connected = False


class Left(FollowingMixin, Server):  # type: ignore[misc]
    """With what follows the master."""


ERRORS = redis.exceptions


@pytest.mark.parametrize(
    ("error", "is_left"),
    [
        pytest.param(ERRORS.ReadOnlyError("You can't write"), True, id="a replica"),
        pytest.param(ERRORS.MasterDownError("Link is down"), True, id="a lone replica"),
        pytest.param(redis.ResponseError("NOREPLICAS Not enough"), True, id="a lone master"),
        pytest.param(redis.ResponseError("ERR in script: -READONLY You"), True, id="in a script"),
        pytest.param(redis.ResponseError("ERR x MASTERDOWN Link"), True, id="in a script, lone"),
        pytest.param(redis.ResponseError("WRONGTYPE READONLY"), False, id="another error"),
    ],
)
def test_a_server_that_takes_no_writes_is_left_at_once(
    error: redis.ResponseError, is_left: bool
) -> None:
    """COR-12: the command is repeated where the address leads by then."""
    connection = Left()
    connection.error = error
    with pytest.raises(redis.ConnectionError if is_left else redis.ResponseError):
        connection.read_response()
    assert connection.is_connected is not is_left


@pytest.mark.parametrize("is_loaded", [False, True])
def test_forbidding_telemetry_to_redis_py_forbids_it_to_nobody_else(
    monkeypatch: pytest.MonkeyPatch, is_loaded: bool
) -> None:
    """With the extra `tracing` the process exports its own spans."""
    ours = ModuleType("opentelemetry")
    if is_loaded:
        monkeypatch.setitem(sys.modules, "opentelemetry", ours)
    else:
        monkeypatch.delitem(sys.modules, "opentelemetry", raising=False)
    runpy.run_path(str(following.__file__))
    assert sys.modules.get("opentelemetry", "none") is (ours if is_loaded else "none")
