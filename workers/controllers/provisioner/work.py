"""Holds the state that all steps of one provisioner reconcile share.

A reconcile of a claim (`claims.py`) or a volume (`volumes.py`) passes itself, as `ClaimWork` or
`Work`, to all its steps. `Backend` hides whether a CSI driver or a plug-in creates the volume.
Everything else is the same for both: queue, leases, intents, events, retries, saving the PV and
deleting it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from workers.engine.belief import user_of
from workers.engine.steps import Step
from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.observability import trail
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.controllers.provisioner.intent import Intent
    from workers.controllers.provisioner.own import Own
    from workers.drivers.driver import Driver
    from workers.engine.context import Runtime
    from workers.engine.outcome import Outcome
    from workers.kube.events import EventType
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

_log = get_logger(__name__)


@dataclass(slots=True)
class Work:
    """One reconcile of one key, under its lease.

    Attributes:
        backend: creates and deletes the volume.
        own: the provisioner's per-process state.
    """

    runtime: Runtime
    driver: Driver
    key: Key
    lease: Lease
    backend: Backend
    own: Own


@dataclass(slots=True)
class ClaimWork(Work):
    """One reconcile of one claim.

    Attributes:
        started: the start of the reconcile, in monotonic time.
        record: the intent, as it is stored in Redis.
        is_orphaned: True if no claim is waiting for the volume, because the claim is gone or has a
            different volume.
        is_elsewhere: whether, in node deployment, the attempt is orphaned because the claim
            selects another node, which creates its own volume of the same name.
        had_failed: whether the intent found at the start belonged to an attempt with a final error.
        had_doubt: whether an intent was found at the start; an earlier call may have left a volume.
        has_read: whether the claim was read from the API server.
        tried: the intent as it was after the last attempt to copy it; it is not copied again
            until it changes.
        recorded_name: the volume's name in the intent found at the start, if it differs from
            the usual name.
    """

    started: float = 0.0
    record: Intent | None = None
    is_orphaned: bool = False
    is_elsewhere: bool = False
    had_failed: bool = False
    had_doubt: bool = False
    has_read: bool = False
    tried: Intent | None = None
    recorded_name: str = ""

    @property
    def volume(self) -> str:
        """The PV's name: the one that the open call used, else the one that the flags give."""
        return self.recorded_name or self.lease.volume

    def overtaken_seconds(self) -> float:
        """Return how many more seconds a dead worker's call may be in flight."""
        if self.record is None:
            return 0.0
        return self.lease.session.seconds_left(self.record.overtaken)

    def read_claim(self) -> JsonObject | None:
        """Reads the claim; returns None if it is gone or a different claim now has its name."""
        namespace, _, name = self.key.object.partition("/")
        try:
            claim = self.runtime.kube.get_claim(namespace, name)
        except NotFoundError:
            return None
        return claim if claim["metadata"].get("uid") == self.key.uid else None

    def user_of(self, names_it: Callable[[JsonObject], bool]) -> str:
        """Return the name of another live PV that satisfies `names_it`; "" if there is none."""

        def is_others(volume: JsonObject) -> bool:
            reference = volume["spec"].get("claimRef") or {}
            is_own = (
                volume["metadata"]["name"] == self.volume and reference.get("uid") == self.key.uid
            )
            return not is_own and names_it(volume)

        return user_of(self.runtime.kube, paths.VOLUMES, is_others)

    def event(self, claim: JsonObject, kind: EventType, reason: str, message: str) -> None:
        """Records an event on the claim, with the driver as its source; never blocks."""
        if kind == "Warning":
            trail.note("error", message)
            _log.warning("attempt failed", reason=reason, err=message)
        self.runtime.effects.event(claim, kind, reason, message, component=self.driver.event_source)

    def keep_copy(self, *, for_others: bool = False) -> None:
        """Copies an open intent to a ConfigMap.

        A volume may exist long before its PV does, and Redis may lose the intent.

        Args:
            for_others: whether to copy the intent even if another worker has taken over the
                key; that worker may have finished the attempt before this worker's call
                returned.
        """
        record = self.record
        if record is None or not record.is_open or record.is_copied or record is self.tried:
            return
        if for_others or self.lease.is_ours():
            self.runtime.effects.reach(Step.COPY_INTENT, self.lease)
            self.record = self.tried = self.own.safekeeping.copy(self.lease, record)

    def forget_intent(self) -> None:
        """Drops the intent and its copy, because the attempt is over."""
        if self.record is not None:
            self.runtime.effects.reach(Step.FORGET_INTENT, self.lease)
            self.own.safekeeping.forget(self.lease, self.record)
            self.record = None


class ClaimAttempt(Protocol):
    """One attempt to provision one claim."""

    claim: JsonObject
    was_sent: bool

    def run(self) -> JsonObject:
        """Return the complete PV, which is already recorded in Redis.

        Raises:
            AttemptError: the attempt failed; the error's state decides what happens next.
            IgnoredError: the claim is not for this driver or node.
        """

    @property
    def current(self) -> Intent:
        """The intent of this attempt; available once it has been recorded."""

    def remember_background(self) -> None:
        """Records that the outcome of the call is unknown (P-401)."""


class Backend(Protocol):
    """The operations that differ between a CSI driver and a plug-in."""

    @property
    def add_finalizer(self) -> bool:
        """True if PVs get the deletion finalizer (the library's AddFinalizer; L-002, L-072)."""

    def threshold(self, kind: str) -> int:
        """Return the retry limit for keys of that kind; 0 means no limit (L-016)."""

    def should_provision(
        self, work: ClaimWork, claim: JsonObject, storage_class: JsonObject | None
    ) -> Outcome | None:
        """Runs the pre-check (L-022); returns None if an attempt is due."""

    def attempt(
        self, work: ClaimWork, claim: JsonObject, storage_class: JsonObject, intent: Intent | None
    ) -> ClaimAttempt:
        """Return a new attempt, which has not called the driver yet."""

    def save(
        self, work: ClaimWork, claim: JsonObject, volume: JsonObject, live: JsonObject | None
    ) -> Outcome:
        """Saves a provisioned volume (L-080, L-081)."""

    def resume(self, work: ClaimWork, volume: JsonObject, live: JsonObject | None) -> Outcome:
        """Resumes saving a volume that an earlier reconcile created."""

    def is_guard_willing(self, volume: JsonObject) -> bool:
        """Return what the plug-in's DeletionGuard decides (L-073 row 1)."""

    def delete(self, work: Work, volume: JsonObject) -> None:
        """Deletes the volume from its storage system; succeeds if the volume is already gone.

        Raises:
            AttemptError: the deletion failed; the error is recorded as an event on the PV, and
                the deletion is retried.
            IgnoredError: this backend must not delete the volume.
        """
