"""Names the effects of a reconcile, so that each can be announced just before it happens.

`Steps.reach(name)` announces every effect on the driver, the API server or Redis. In production, it
checks the lease (G9). The crash tests kill the process at each announcement, and prove that the
next owner reaches the same final state (I-7).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from workers.queue.leases import Lease


class Step(StrEnum):
    """The effects of claim and volume sync, in the order of a complete reconcile.

    Other controllers name their effects in their own folders; each name is a string.
    """

    PROTECT_SOURCE = "protect-source"
    RECORD_INTENT = "record-intent"
    COPY_INTENT = "copy-intent"
    CREATE_VOLUME = "create-volume"
    CLEAN_UP = "clean-up"
    RECORD_VOLUME = "record-volume"
    SAVE_VOLUME = "save-volume"
    LABEL_VOLUME = "label-volume"
    UNPROTECT_SOURCE = "unprotect-source"
    CLEAR_NODE = "clear-node"
    FORGET_INTENT = "forget-intent"
    PATCH_FINALIZER = "patch-finalizer"
    DELETE_VOLUME = "delete-volume"
    DELETE_OBJECT = "delete-object"
    RELEASE_OBJECT = "release-object"
    FINISH_KEY = "finish-key"


class Steps(Protocol):
    """A hook that is called before each effect, and may raise an exception to forbid it."""

    def reach(self, step: str, lease: Lease) -> None:
        """Raise LeaseLost if the key already has another owner."""


# These effects are allowed without the lease. Redis itself decides who may end a lease. A copy of
# the intent is needed whoever owns the volume, because the volume may exist in the storage system.
_ALWAYS_ALLOWED: frozenset[str] = frozenset({Step.FINISH_KEY, Step.COPY_INTENT})


class LeasedSteps:
    """The steps in production: an effect is allowed while the lease is held."""

    def reach(self, step: str, lease: Lease) -> None:
        """Raise LeaseLost if the key already has another owner (G9)."""
        if step not in _ALWAYS_ALLOWED:
            lease.check()
