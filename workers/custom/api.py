"""The interface that the author of a provisioner implements.

It is the interface of sig-storage-lib-external-provisioner v13 in Python (L-100, L-101). Methods
are plain functions that may block for minutes: each call runs in its own thread, under a lease that
the process renews. A method can run twice for one volume, even in a different process, if a
response is lost or a process dies. So `provision` must be idempotent by `pv_name`, and `delete` by
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
"""The gRPC status number for a request that can never succeed unchanged, so its retries are slow
(L-061).
"""


class VolumeStore(Enum):
    """What csi-fleet does with a provisioned volume if the API server refuses its PV."""

    QUEUE = "queue"
    """Keep the volume and retry saving the PV forever; never delete the volume (L-080)."""
    BACKOFF = "backoff"
    """After a few failed attempts, delete the volume and provision the claim again (L-081)."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of one provisioner, read once at startup (L-002).

    Attributes:
        additional_names: other provisioner names that the provisioner also serves (L-026).
        add_finalizer: True to protect PVs with the deletion finalizer, so that when a user
            deletes a PV, its volume is also deleted from the storage system; otherwise the
            volume is kept there (L-072).
        failed_provision_threshold: the number of failures after which a claim is retried only at
            each change and each resync, no longer with back-off (L-016); 0 for no limit.
        failed_delete_threshold: the same limit for the deletion of a volume.
        volume_store: see `VolumeStore`. The library's default is BACKOFF; with QUEUE, no volume
            is lost.
        save_attempts: for BACKOFF, how often to try to save a PV, and then how often to try to
            delete its volume.
        save_interval_seconds: for BACKOFF, the time between two attempts.
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
    """One request for a volume. All objects are copies, so changing them has no effect.

    Attributes:
        storage_class: the StorageClass, as the API server returned it.
        pv_name: the name that the PV must have; it is the same for every attempt for one claim.
        claim: the PersistentVolumeClaim; a stored copy if the claim was deleted.
        selected_node: the name of the node that the scheduler chose; None if it chose none.
    """

    storage_class: JsonObject
    pv_name: str
    claim: JsonObject
    selected_node: str | None = None

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of the class."""
        return dict(self.storage_class.get("parameters") or {})

    @property
    def requested_size(self) -> str:
        """The requested size as written in the claim; empty if the claim requests no size."""
        resources = (self.claim.get("spec") or {}).get("resources") or {}
        return str((resources.get("requests") or {}).get("storage", ""))


@dataclass(frozen=True, slots=True)
class ProvisionResult:
    """A volume that was created.

    Attributes:
        volume: the PersistentVolume with its name, capacity, access modes and source. The
            engine adds the claim reference, the class name, `pv.kubernetes.io/provisioned-by`
            and the finalizer.
    """

    volume: JsonObject


class ProvisionError(Exception):
    """Raised by `provision` if it failed; any other exception counts as State.BACKGROUND.

    Args:
        message: the message of the claim's event: what failed and what to do. No secrets.
        state: what the storage system may be doing now. FINISHED: nothing, and no volume
            exists. BACKGROUND: it may still create the volume, so the claim is retried until
            the result is known, even if the user deletes the claim. NO_CHANGE: the same as
            after the previous attempt. RESCHEDULE: the volume cannot be created for this node,
            and the scheduler should choose another node.
        code: INVALID_ARGUMENT for a request that can never succeed; otherwise None.
    """

    def __init__(
        self, message: str, state: State = State.FINISHED, *, code: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.state = state
        self.code = code


class Ignored(Exception):  # noqa: N818 - the library's name for it, and not an error
    """The claim or volume does not belong to this provisioner: no event, no retry (L-044).

    Args:
        reason: the reason, for the log.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Provisioner(Protocol):
    """The interface of a plug-in. It may inherit from this class or simply have the same members.

    The optional members are the same as in the library: `options: Options`;
    `should_provision(claim) -> bool` (Qualifier), called before anything else;
    `should_delete(volume) -> bool` (DeletionGuard); `supports_block() -> bool` (False if absent).
    """

    name: str
    """The provisioner's name in classes and claims, such as `example.com/nfs`."""

    def provision(self, options: ProvisionOptions) -> ProvisionResult:
        """Create the volume `options.pv_name`, or return it if an earlier call created it.

        Raises:
            ProvisionError: the volume was not created; the error's state describes what the
                storage system may be doing.
            Ignored: another program provisions this claim.
        """

    def delete(self, volume: JsonObject) -> None:
        """Delete the volume of a PersistentVolume; succeed if the volume no longer exists.

        Raises:
            Ignored: the volume does not belong to this instance; the PV is kept, and there is
                no event and no retry.
            Exception: any other failure; it causes an event on the PV and a retry.
        """
