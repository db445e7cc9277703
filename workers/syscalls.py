"""Calls to the kernel that cannot block, made without giving Python's lock away.

Python gives its lock away around each call to the system. Where another thread waits for the lock,
getting it back takes ten times as long as a call that only copies some bytes into the kernel.
"""

from __future__ import annotations

import ctypes
import select
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket

# `PyDLL` keeps the lock during a call, `CDLL` gives it away.
_LIBC: Final = ctypes.PyDLL(None)


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


_poll: Final = _LIBC.poll
_poll.argtypes = [ctypes.POINTER(_PollFd), ctypes.c_ulong, ctypes.c_int]


def is_silent(sock: socket.socket) -> bool:
    """Whether nothing has come on this connection: no byte, no end and no error."""
    asked = _PollFd(sock.fileno(), select.POLLIN, 0)
    return bool(_poll(ctypes.byref(asked), 1, 0) == 0)
