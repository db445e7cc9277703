"""Follows one Lease for one worker: who holds it, and until when this worker may work under it.

The Lease is the Go sidecar's (M-020, F-020). Workers of one Redis are fellows: they share the work,
need no leader, and any of them may hold the Lease. The holder's identity shows whether it is a
fellow. Every other holder is a stranger; its Lease must expire first, as with client-go.

Each worker counts its time by its own clock, from a moment that is surely before the renewal: the
holder from the start of its write, a fellow from the start of its last read that did not show the
renewal yet. A stranger counts the whole duration from when it sees the renewal, which is later. So
this worker has stopped before a stranger starts, whatever hangs or dies.

A fellow whose remaining time is unknown or too short writes itself into the Lease instead of the
present holder: a renewal by one fellow counts for all of them.

Source: kubernetes/client-go, tools/leaderelection/leaderelection.go.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from workers.engine.leasename import OURS
from workers.errors import ApiError
from workers.kube import paths
from workers.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workers.config.settings import LeaderSettings
    from workers.engine.leasename import LeaseIdentity
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource

_log = get_logger(__name__)

# Share of the duration that is used; the rest allows for clock drift and for cancelling calls.
_USED_SHARE: Final = 0.9
# Share of the duration between a fellow's reads: short enough that it sees each renewal in time.
_LOOK_SHARE: Final = 0.15
# Interval of the repeated warning that a Lease is not known.
_AGAIN_SECONDS: Final = 60.0
# Random share by which a waiting process's pause is longer (client-go: JitterFactor, 1.2).
_JITTER: Final = 0.2


class Standing(Enum):
    """Who holds the Lease."""

    HELD = "held"
    FELLOW = "fellow"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"

    @property
    def is_ours(self) -> bool:
        """True if this process or a fellow holds it."""
        return self in {Standing.HELD, Standing.FELLOW}


class Leases(Protocol):
    """The part of workers.kube.resources.KubeResources that is used here."""

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> JsonObject:
        """Read one object live."""

    def create(self, resource: Resource, item: Mapping[str, Any]) -> JsonObject:
        """POST an object."""

    def update(self, resource: Resource, item: Mapping[str, Any]) -> JsonObject:
        """PUT an object with its resourceVersion."""


@dataclass(slots=True)
class Election:
    """One Lease; call `step` every `pause_seconds`, never from two threads at once.

    Args:
        leases: the API server; each call must end within the renew deadline.
        name: of the Lease (F-020).
        identity: of this process; it also recognises fellows.
        settings: flags.
        clock: local seconds that also count while the machine is suspended.
        now: wall clock for the times written into the Lease; never compared with another clock.
        on_slow: called when the holder had to read the Lease before it renewed it.
    """

    leases: Leases
    name: str
    identity: LeaseIdentity
    settings: LeaderSettings
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    on_slow: Callable[[], None] = lambda: None
    standing: Standing = Standing.UNKNOWN
    holder: str = ""
    valid_until: float = field(default=float("-inf"))
    is_fresh: bool = False
    is_in_doubt: bool = False
    trouble: str = ""
    _doubted: str = ""
    _seen: tuple[str, str] = ("", "")
    _seen_at: float = field(default=float("-inf"))
    _renewed_after: float = field(default=float("-inf"))
    _looked_at: float = field(default=float("-inf"))
    _mine: JsonObject | None = None
    _told_at: float = field(default=float("-inf"))

    def may_work(self) -> bool:
        """Return True if this process may work now on the keys that the Lease covers."""
        return self.standing.is_ours and self.clock() < self.valid_until

    def step(self) -> Standing:
        """Take, renew or watch the Lease once.

        `is_in_doubt` afterwards means: the holder may be a fellow that knows a newer name of this
        Redis. The next step decides.

        While the API server does not answer, work continues until the last renewal expires. Then
        the standing is UNKNOWN for this process; its fellows may still know it.
        """
        self.is_in_doubt = False
        try:
            self.standing = self._try()
            self.is_fresh, self.trouble = True, ""
        except ApiError as error:
            self.leave(error)
        return self.standing

    def leave(self, why: object) -> None:
        """Neither take nor renew the Lease; work continues until the last renewal expires."""
        self.is_fresh = False
        if not self.may_work():
            now = self.clock()
            if self.standing is not Standing.UNKNOWN:
                _log.warning("lease is not known any more", lease=self.name, err=why)
                self._told_at = now
            elif now - self._told_at >= _AGAIN_SECONDS:  # also a Lease that was never known
                _log.warning("lease is not known, no work is done by it", lease=self.name, err=why)
                self._told_at = now
            self.standing = Standing.UNKNOWN
            self.trouble = f"lease {self.name} is not known, no work is done by it: {why}"

    def pause_seconds(self) -> float:
        """Return the time until the next step."""
        period = self.settings.retry_period_seconds
        if self.standing is Standing.HELD:
            return period
        if self.standing is not Standing.FOREIGN:
            period = self._look_seconds
        return period * (1 + _JITTER * random.random())  # noqa: S311 - no secret

    def release(self) -> None:
        """Give the Lease back if this process or a fellow holds it: no candidate waits (F-018).

        Only the last of the fellows calls it.
        """
        if not self.standing.is_ours:
            return
        self.standing = Standing.UNKNOWN
        try:
            lease = self._read()
            if self.identity.is_fellow(holder_of(lease)):
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                self.leases.update(paths.LEASES, {**lease, "spec": spec})
        except ApiError as error:
            _log.warning("lease runs out by itself", lease=self.name, err=error)

    @property
    def _look_seconds(self) -> float:
        settings = self.settings
        return min(settings.retry_period_seconds, settings.lease_duration_seconds * _LOOK_SHARE)

    def _try(self) -> Standing:
        """Renew, or read and decide; again at once if another process was faster."""
        return self._renew() or self._try_once() or self._try_once() or Standing.UNKNOWN

    def _renew(self) -> Standing | None:
        """Renew without reading, over what this process wrote last; None if that is not possible.

        Source: client-go, leaderelection.go tryAcquireOrRenew, step 1.
        """
        mine, self._mine = self._mine, None
        age = self.clock() - self._seen_at
        if self.standing is not Standing.HELD or age > self.settings.lease_duration_seconds:
            return None
        return None if mine is None else self._write(mine, is_new=False)

    def _try_once(self) -> Standing | None:
        """Read the Lease and act on it; None if another process changed it meanwhile."""
        started = self.clock()
        try:
            lease = self._read()
        except NotFoundError:
            return self._create()
        spec = lease.get("spec") or {}
        self.holder = holder_of(lease)
        seen = (self.holder, str(spec.get("renewTime") or ""))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self.clock()
            self._renewed_after = self._looked_at
        self._looked_at = started
        if self.holder == str(self.identity):
            if self.standing is Standing.HELD:
                self.on_slow()
            return self._write(lease, is_new=False)
        # The holder's own duration, from when this process saw the renewal, as in client-go.
        duration = float(spec.get("leaseDurationSeconds") or self.settings.lease_duration_seconds)
        if not self.holder or self.clock() - self._seen_at > duration:
            return self._write(lease, is_new=True)
        if not self.identity.is_fellow(self.holder):
            # A csi-fleet holder may be a fellow that already knows a new name of this Redis.
            self.is_in_doubt = (
                OURS in self.holder and self.holder != self._doubted and self.may_work()
            )
            self._doubted = self.holder
            return self.standing if self.is_in_doubt else Standing.FOREIGN
        return self._stand_by(lease, duration)

    def _stand_by(self, lease: JsonObject, duration: float) -> Standing | None:
        """Rely on a fellow's renewal if it lasts until the next read; otherwise take the Lease."""
        until = self._renewed_after + duration * _USED_SHARE
        if until - self.clock() < self._look_seconds * (1 + _JITTER):
            return self._write(lease, is_new=True)
        self.valid_until = until
        return Standing.FELLOW

    def _read(self) -> JsonObject:
        return self.leases.get(paths.LEASES, self.name, namespace=self.settings.namespace)

    def _create(self) -> Standing | None:
        body = {
            "apiVersion": paths.LEASES.api_version,
            "kind": paths.LEASES.kind,
            "metadata": {"name": self.name, "namespace": self.settings.namespace},
            "spec": {},
        }
        started = self.clock()
        try:
            self._sent(self.leases.create(paths.LEASES, self._filled(body, is_new=True)), started)
        except AlreadyExistsError:
            return None
        self._tell_taken()
        return Standing.HELD

    def _write(self, lease: JsonObject, *, is_new: bool) -> Standing | None:
        started = self.clock()
        try:
            self._sent(
                self.leases.update(paths.LEASES, self._filled(lease, is_new=is_new)), started
            )
        except (ConflictError, NotFoundError):
            return None
        if is_new:
            self._tell_taken()
        return Standing.HELD

    def _tell_taken(self) -> None:
        _log.info("lease taken", lease=self.name, identity=str(self.identity))

    def _sent(self, lease: JsonObject, started: float) -> None:
        self.holder = holder_of(lease)
        self._seen = (self.holder, str(lease["spec"].get("renewTime") or ""))
        self._seen_at = self.clock()
        self._renewed_after = self._looked_at = started
        duration = self.settings.lease_duration_seconds * _USED_SHARE
        self.valid_until = started + min(self.settings.renew_deadline_seconds, duration)
        self._mine = lease

    def _filled(self, lease: JsonObject, *, is_new: bool) -> JsonObject:
        spec, metadata = dict(lease.get("spec") or {}), dict(lease["metadata"])
        moment = datetime.fromtimestamp(self.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if is_new:
            is_change = bool(spec.get("renewTime"))
            spec["acquireTime"] = moment
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + is_change
        spec["holderIdentity"] = str(self.identity)
        # The API accepts only whole seconds, at least one.
        spec["leaseDurationSeconds"] = max(1, round(self.settings.lease_duration_seconds))
        spec["renewTime"] = moment
        labels = {**(metadata.get("labels") or {}), **dict(self.settings.labels)}
        if labels:
            metadata["labels"] = labels
        return {**lease, "metadata": metadata, "spec": spec}


def holder_of(lease: Mapping[str, Any]) -> str:
    """Return `spec.holderIdentity`; "" if the Lease has no holder."""
    return (lease.get("spec") or {}).get("holderIdentity") or ""
