"""What the kernel takes at once, and what it says of a connection nobody reads."""

from __future__ import annotations

import socket
import struct

import pytest

from tests.support.waiting import wait_until
from workers.syscalls import is_silent, send_at_once


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_all_is_sent_that_fits(pair):
    ours, theirs = pair
    assert send_at_once(ours, b"PING\r\n\0") == 7
    assert theirs.recv(100) == b"PING\r\n\0"


def test_a_full_buffer_takes_a_part_and_then_nothing(pair):
    """It never waits, though the socket would."""
    ours, theirs = pair
    data = bytes(range(256)) * 4096
    sent = send_at_once(ours, data)
    assert 0 < sent < len(data)
    while more := send_at_once(ours, data):
        sent += more
    ours.shutdown(socket.SHUT_WR)
    came = b"".join(iter(lambda: theirs.recv(2**20), b""))
    assert len(came) == sent


@pytest.mark.parametrize("end", ["ours", "theirs"])
def test_an_error_sends_nothing(pair, end):
    """And no signal ends the process."""
    dict(zip(("ours", "theirs"), pair, strict=True))[end].close()
    assert send_at_once(pair[0], b"x") == 0


def test_nothing_came(pair):
    assert is_silent(pair[0])


def test_a_byte_came(pair):
    pair[1].send(b"x")
    assert not is_silent(pair[0])


def test_the_end_came(pair):
    pair[1].close()
    assert not is_silent(pair[0])


def test_a_reset_came():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
    ):
        theirs, _ = server.accept()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        wait_until(lambda: not is_silent(ours), 10, "the reset is there")
