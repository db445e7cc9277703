"""What does everything inside one pass of the provisioner share?

A pass over a claim (`claims.py`) or a volume (`volumes.py`) hands itself, as `ClaimWork` or `Work`,
to all that it calls. Who makes the volume, a CSI driver or a plug-in, stands behind `Backend`:
everything around it (queue, leases, intents, events, retries, the saving of the PV and its
deletion) is the same for both.
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
    """One pass over one key, under its lease.

    Attributes:
        backend: who makes and removes the volume.
        own: the provisioner's part of this process.
    """

    runtime: Runtime
    driver: Driver
    key: Key
    lease: Lease
    backend: Backend
    own: Own


@dataclass(slots=True)
class ClaimWork(Work):
    """One pass over one claim.

    Attributes:
        started: monotonic.
        record: of the attempt, as it is in Redis.
        is_orphaned: nobody waits for the volume: the claim is gone, or has another one.
        is_elsewhere: node deployment: so because the claim names another node, which makes its own
            volume of the same name.
        had_failed: the record at the start was of an attempt that failed for good.
        had_doubt: there was a record at the start: an earlier call may have left a volume.
        has_read: the API server told of the claim.
        tried: the record after the last try to copy it, which another one would not change.
        recorded_name: the volume's name in the record at the start; "" without one.
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
        """The PV's name: that of the oldest open call, whatever the flags say now."""
        return self.recorded_name or self.lease.volume

    def overtaken_seconds(self) -> float:
        """How long a call that ours overtook may still run."""
        if self.record is None:
            return 0.0
        return self.lease.session.seconds_left(self.record.overtaken)

    def read_claim(self) -> JsonObject | None:
        """The claim as it is now; None if it is gone or another claim took its name."""
        namespace, _, name = self.key.object.partition("/")
        try:
            claim = self.runtime.kube.get_claim(namespace, name)
        except NotFoundError:
            return None
        return claim if claim["metadata"].get("uid") == self.key.uid else None

    def user_of(self, names_it: Callable[[JsonObject], bool]) -> str:
        """The name of a live PV, other than the claim's own, that names a volume; "" for none."""

        def is_others(volume: JsonObject) -> bool:
            reference = volume["spec"].get("claimRef") or {}
            is_own = (
                volume["metadata"]["name"] == self.volume and reference.get("uid") == self.key.uid
            )
            return not is_own and names_it(volume)

        return user_of(self.runtime.kube, paths.VOLUMES, is_others)

    def event(self, claim: JsonObject, kind: EventType, reason: str, message: str) -> None:
        """An event on the claim, in the driver's name; never blocks."""
        if kind == "Warning":
            trail.note("error", message)
            _log.warning("attempt failed", reason=reason, err=message)
        self.runtime.effects.event(claim, kind, reason, message, component=self.driver.event_source)

    def keep_copy(self, *, for_others: bool = False) -> None:
        """A volume may be there or come, and it may take long until its PV is saved.

        So what is known of it must not stand in Redis alone.

        Args:
            for_others: also when the key is another worker's by now, who may have ended the attempt
                before our call was over.
        """
        record = self.record
        if record is None or not record.is_open or record.is_copied or record is self.tried:
            return
        if for_others or self.lease.is_ours():
            self.runtime.effects.reach(Step.COPY_INTENT, self.lease)
            self.record = self.tried = self.own.safekeeping.copy(self.lease, record)

    def forget_intent(self) -> None:
        """The storage holds nothing of this claim: drop what was remembered."""
        if self.record is not None:
            self.runtime.effects.reach(Step.FORGET_INTENT, self.lease)
            self.own.safekeeping.forget(self.lease, self.record)
            self.record = None


class ClaimAttempt(Protocol):
    """One attempt to provision one claim."""

    claim: JsonObject
    was_sent: bool

    def run(self) -> JsonObject:
        """Returns the complete PV, already recorded in Redis.

        Raises:
            AttemptError: with the state that decides what follows.
            IgnoredError: the claim is not ours.
        """

    @property
    def current(self) -> Intent:
        """The intent of this attempt, once it is recorded."""

    def remember_background(self) -> None:
        """The end is not known: the record says so (P-401)."""


class Backend(Protocol):
    """What differs between a CSI driver and a plug-in."""

    @property
    def add_finalizer(self) -> bool:
        """Option AddFinalizer of the library (L-002, L-072)."""

    def threshold(self, kind: str) -> int:
        """Failures after which a key of that kind is given up, 0 for never (L-016)."""

    def should_provision(
        self, work: ClaimWork, claim: JsonObject, storage_class: JsonObject | None
    ) -> Outcome | None:
        """The pre-check (L-022); None means an attempt is due."""

    def attempt(
        self, work: ClaimWork, claim: JsonObject, storage_class: JsonObject, intent: Intent | None
    ) -> ClaimAttempt:
        """A new attempt; nothing has happened yet."""

    def save(
        self, work: ClaimWork, claim: JsonObject, volume: JsonObject, live: JsonObject | None
    ) -> Outcome:
        """Saves a provisioned volume (L-080, L-081)."""

    def resume(self, work: ClaimWork, volume: JsonObject, live: JsonObject | None) -> Outcome:
        """Goes on with the saving of a volume that an earlier pass made."""

    def is_guard_willing(self, volume: JsonObject) -> bool:
        """Answer of the DeletionGuard (L-073 row 1)."""

    def delete(self, work: Work, volume: JsonObject) -> None:
        """Deletes the volume in its storage; a volume that is gone already is a success.

        Raises:
            AttemptError: told on the PV and retried.
            IgnoredError: not ours to delete.
        """
