"""Proves that a process is alive, so that others need not wait for a dead process's calls.

When the process that called a driver on a unix socket dies, the driver sees the connection end, and
cancels the call as it would at the call's deadline. So no worker has to wait for that deadline once
the caller is certainly dead. Silence in Redis proves nothing: a frozen or disconnected process
still has its connection to the driver.

Each worker holds a socket with its own name in Linux's abstract namespace. The kernel removes this
name when the process ends, and not before. The names belong to a network namespace, so only
processes in the same pod or on the same host can check them; all other processes treat the worker
as alive.
"""

from __future__ import annotations

import re
import socket
import uuid
from functools import cache
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"[0-9a-f]{16}")


@cache
def _place() -> str:
    """Return the machine's boot id and the network namespace; empty if they cannot be read."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
    except (OSError, ValueError):
        return ""


def _address(name: str) -> str:
    return f"\0csi-fleet/{name}"


class Lifeline:
    """The proof that this process is alive; it ends with the process, or with `close`.

    Attributes:
        caller: this process's name in a `Deadline`; empty if the system offers no such proof.
    """

    def __init__(self) -> None:
        self.caller = ""
        name = uuid.uuid4().hex[:16]
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.bind(_address(name))
        except OSError:  # not Linux, or not permitted
            return
        if _place():
            self.caller = f"{_place()}/{name}"

    def close(self) -> None:
        """Remove the name; used only by tests."""
        self._socket.close()


def is_gone(caller: str) -> bool:
    """Return True if the process has certainly ended; False if this cannot be determined here.

    Args:
        caller: the name of the process; it comes from a record, so it is not trusted.
    """
    place, _, name = caller.rpartition("/")
    if not place or place != _place() or not _NAME.fullmatch(name):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(_address(name))
    except ConnectionRefusedError:
        return True
    except OSError:  # for example, no file descriptor is left
        return False
    return False
