"""What does a reconcile lock, and who may hold the same lock beside it?

A lock is a name and a mode. Any number of shared holders stand side by side; an exclusive holder
stands alone. Names: the PV's name for whatever is done to one volume, and `<driver>#<handle>` where
static PVs may share a volume of the storage.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Self
from urllib.parse import unquote

_UNSAFE = re.compile(r"[%\s\x00-\x20\x7f]")


class Mode(Enum):
    """Whether others may hold the lock too; the value is its letter in Redis."""

    SHARED = "s"
    EXCLUSIVE = "x"


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock that a reconcile asks for."""

    name: str
    mode: Mode = Mode.EXCLUSIVE

    @property
    def text(self) -> str:
        """Its spelling in Redis: `x:<name>` or `s:<name>`, blanks and controls encoded."""
        return f"{self.mode.value}:{lock_name(self.name)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read its spelling back."""
        mode, _, name = text.partition(":")
        return cls(unquote(name), Mode(mode))


def lock_name(name: str) -> str:
    """A lock's name as Redis knows it: it holds no blank, so that names can stand in a row."""
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


def snapshot_content(name: str, mode: Mode = Mode.EXCLUSIVE) -> Lock:
    """Held alone while a content's snapshot is deleted, shared while a volume is made from it."""
    return Lock(f"snapshot-content:{name}", mode)


def stored_volume(driver: str, handle: str, mode: Mode = Mode.EXCLUSIVE) -> Lock:
    """A volume of the storage, whatever its PV: alone to delete it, shared to cut snapshots."""
    return Lock(f"{driver}#{handle}", mode)
