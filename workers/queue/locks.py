"""What does a reconcile lock, and who may hold the same lock beside it?

A lock is a name and a mode. Any number of shared holders stand side by side; an exclusive holder
stands alone. Names: the PV's name for whatever is done to one volume, and `<driver>#<handle>` where
static PVs may share a volume of the storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Mode(Enum):
    """Whether others may hold the lock too; the value is its letter in Redis."""

    SHARED = "s"
    EXCLUSIVE = "x"


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock that a reconcile asks for."""

    name: str
    mode: Mode = Mode.EXCLUSIVE
