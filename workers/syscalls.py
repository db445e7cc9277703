"""Calls to the kernel that cannot block, made without giving Python's lock away.

Python gives its lock away around each call to the system. Where another thread waits for the lock,
getting it back takes ten times as long as a call that only copies some bytes into the kernel.
"""

from __future__ import annotations

import ctypes
import select
import socket
from typing import Final

# `PyDLL` keeps the lock during a call, `CDLL` gives it away.
_LIBC: Final = ctypes.PyDLL(None)


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


_send: Final = _LIBC.send
_send.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
_send.restype = ctypes.c_ssize_t
_poll: Final = _LIBC.poll
_poll.argtypes = [ctypes.POINTER(_PollFd), ctypes.c_ulong, ctypes.c_int]


def send_at_once(sock: socket.socket, data: bytes) -> int:
    """Send what the kernel takes without a wait.

    Returns:
        How many bytes that were; 0 also for an error, which the next usual call meets again.
    """
    sent: int = _send(sock.fileno(), data, len(data), socket.MSG_DONTWAIT)
    return max(0, sent)


def is_silent(sock: socket.socket) -> bool:
    """Whether nothing has come on this connection: no byte, no end and no error."""
    asked = _PollFd(sock.fileno(), select.POLLIN, 0)
    return bool(_poll(ctypes.byref(asked), 1, 0) == 0)
