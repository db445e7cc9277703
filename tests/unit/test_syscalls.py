"""What the kernel takes at once, and what it says of a connection nobody reads."""

from __future__ import annotations

import socket
import struct

import pytest

from tests.support.waiting import wait_until
from workers.syscalls import is_silent


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


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
