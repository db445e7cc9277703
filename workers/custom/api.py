"""What does the author of a provisioner write, and what does it get?

The interface of sig-storage-lib-external-provisioner v13 in Python (L-100, L-101). Methods are
plain functions: they may block and take minutes, for each runs in a thread of its own under a
lease that the process renews. They may run twice for one volume (a lost answer, a killed process),
also in another process, so both `provision` and `delete` must be idempotent: by `pv_name` and by
volume.

Source: sig-storage-lib-external-provisioner, controller/volume.go and controller/controller.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from workers.errors import State

JsonObject = dict[str, Any]

INVALID_ARGUMENT: Final = 3
"""gRPC's number: the request can never work as it is, so retries are slow (L-061)."""


class VolumeStore(Enum):
    """What happens to a provisioned volume whose PV the API server refuses."""

    QUEUE = "queue"
    """It is kept and saved for as long as it takes; never deleted (L-080)."""
    BACKOFF = "backoff"
    """After some tries it is deleted again and the claim starts anew (L-081)."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of one provisioner, read once at start (L-002).

    Attributes:
        additional_names: further provisioner names it answers to (L-026).
        add_finalizer: protect PVs by the deletion finalizer, so that a PV deleted by hand is
            deleted in the storage too; without it such a volume stays there (L-072).
        failed_provision_threshold: failures of one claim that are retried, 0 for all. A claim
            given up is tried once more at each change and each resync (L-016).
        failed_delete_threshold: the same for the deletion of a volume.
        volume_store: see `VolumeStore`. The library's default is BACKOFF; ours loses nothing.
        save_attempts: BACKOFF: tries to save a PV, and then tries to delete its volume.
        save_interval_seconds: BACKOFF: time between two of them.
    """

    additional_names: tuple[str, ...] = ()
    add_finalizer: bool = False
    failed_provision_threshold: int = 15
    failed_delete_threshold: int = 15
    volume_store: VolumeStore = VolumeStore.QUEUE
    save_attempts: int = 5
    save_interval_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class ProvisionOptions:
    """One request for a volume. All objects are copies; changing them has no effect.

    Attributes:
        storage_class: the StorageClass, as the API server gives it.
        pv_name: the name the PV must have; the same for each attempt of one claim.
        claim: the PersistentVolumeClaim; a remembered copy when the claim is gone already.
        selected_node: name of the node the scheduler chose, None without.
    """

    storage_class: JsonObject
    pv_name: str
    claim: JsonObject
    selected_node: str | None = None

    @property
    def parameters(self) -> dict[str, str]:
        """The class's parameters."""
        return dict(self.storage_class.get("parameters") or {})

    @property
    def requested_size(self) -> str:
        """The requested size as the claim writes it; empty without."""
        resources = (self.claim.get("spec") or {}).get("resources") or {}
        return str((resources.get("requests") or {}).get("storage", ""))


@dataclass(frozen=True, slots=True)
class ProvisionResult:
    """A volume that exists.

    Attributes:
        volume: the PersistentVolume with name, capacity, access modes and source. Claim reference,
            class name, `pv.kubernetes.io/provisioned-by` and finalizer are added by the engine.
    """

    volume: JsonObject


class ProvisionError(Exception):
    """`provision` failed; any other exception counts as State.BACKGROUND.

    Args:
        message: the text of the claim's event: what failed and what to do. No secrets.
        state: what the storage may be doing now. FINISHED: nothing, and nothing is left behind.
            BACKGROUND: it may still make the volume, so the claim is retried to its end even if
            the user deletes it. NO_CHANGE: as after the attempt before. RESCHEDULE: not on this
            node; the scheduler shall choose again.
        code: INVALID_ARGUMENT for a request that can never work; else None.
    """

    def __init__(
        self, message: str, state: State = State.FINISHED, *, code: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.state = state
        self.code = code


class Ignored(Exception):  # noqa: N818 - the library's word, and not an error
    """Not this provisioner's claim or volume: no event, no retry (L-044).

    Args:
        reason: for the log.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Provisioner(Protocol):
    """What a plug-in must have. It may inherit from this class or just look like it.

    Found by their presence, as in the library: `options: Options`;
    `should_provision(claim) -> bool` (Qualifier), asked before anything else;
    `should_delete(volume) -> bool` (DeletionGuard); `supports_block() -> bool`, absent means no.
    """

    name: str
    """The provisioner name that classes and claims carry, such as `example.com/nfs`."""

    def provision(self, options: ProvisionOptions) -> ProvisionResult:
        """Make the volume `options.pv_name`, or find it if it was made before.

        Raises:
            ProvisionError: it failed; says what the storage may be doing.
            Ignored: somebody else provisions this claim.
        """

    def delete(self, volume: JsonObject) -> None:
        """Delete a PersistentVolume's storage; a volume that is gone already is a success.

        Raises:
            Ignored: not this instance's volume: the PV stays, no event, no retry.
            Exception: any other: told on the PV and retried.
        """
