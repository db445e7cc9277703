"""The effects of one pass, in order, as seen by whoever must know where a process may die.

Every effect on the driver, the API server or Redis is announced by `Steps.reach(name)` just before
it happens. Production checks the lease there (G9); the crash tests kill the process there and
prove that the next owner ends in the same state (I-7).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from workers.queue.leases import Lease


class Step(StrEnum):
    """Every effect of claim and volume sync, in the order of a full pass.

    Other controllers name theirs in their own folders; each is a string.
    """

    PROTECT_SOURCE = "protect-source"
    RECORD_INTENT = "record-intent"
    COPY_INTENT = "copy-intent"
    CREATE_VOLUME = "create-volume"
    CLEAN_UP = "clean-up"
    RECORD_VOLUME = "record-volume"
    SAVE_VOLUME = "save-volume"
    UNPROTECT_SOURCE = "unprotect-source"
    CLEAR_NODE = "clear-node"
    FORGET_INTENT = "forget-intent"
    PATCH_FINALIZER = "patch-finalizer"
    DELETE_VOLUME = "delete-volume"
    DELETE_OBJECT = "delete-object"
    RELEASE_OBJECT = "release-object"
    FINISH_KEY = "finish-key"


class Steps(Protocol):
    """Told about each effect before it happens; may raise to forbid it."""

    def reach(self, step: str, lease: Lease) -> None:
        """Raises LeaseLost if the volume has another owner by now."""


# Allowed without the lease: Redis itself decides who may end a lease, and what may exist in the
# storage is a fact that somebody has to know of, whoever owns the volume by now.
_ALWAYS_ALLOWED: frozenset[str] = frozenset({Step.FINISH_KEY, Step.COPY_INTENT})


class LeasedSteps:
    """Production: an effect is allowed while the lease is held."""

    def reach(self, step: str, lease: Lease) -> None:
        """Raises LeaseLost if the volume has another owner by now (G9)."""
        if step not in _ALWAYS_ALLOWED:
            lease.check()
