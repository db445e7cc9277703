"""Declares the locks that a reconcile takes.

A lock has a name and a mode. Any number of shared holders can hold a lock at the same time; an
exclusive holder is always the only one. The name is the PV's name for all work on one volume, and
`<driver>#<handle>` where several static PVs may refer to the same volume in the storage system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Self
from urllib.parse import unquote

_UNSAFE = re.compile(r"[%\s\x00-\x20\x7f]")


class Mode(Enum):
    """The mode of a lock; the value is the letter for the mode in Redis."""

    SHARED = "s"
    EXCLUSIVE = "x"


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock that a reconcile requests."""

    name: str
    mode: Mode = Mode.EXCLUSIVE

    @property
    def text(self) -> str:
        """The lock as a string, `x:<name>` or `s:<name>`, with special characters encoded."""
        return f"{self.mode.value}:{lock_name(self.name)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a lock's string form."""
        mode, _, name = text.partition(":")
        return cls(unquote(name), Mode(mode))


def lock_name(name: str) -> str:
    """Return a lock's name as stored in Redis: without blanks, because blanks separate names."""
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


def snapshot_content(name: str, mode: Mode = Mode.EXCLUSIVE) -> Lock:
    """Return a snapshot content's lock: exclusive to delete the snapshot, shared for restores."""
    return Lock(f"snapshot-content:{name}", mode)


def stored_volume(driver: str, handle: str, mode: Mode = Mode.EXCLUSIVE) -> Lock:
    """Return a stored volume's lock, whatever its PV: exclusive to delete, shared for snapshots."""
    return Lock(f"{driver}#{handle}", mode)
