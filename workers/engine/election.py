"""Follows one Lease for one worker: who holds it, and how long this worker may work under it.

The Lease is the Go sidecar's (M-020, F-020). The workers of one Redis are peers, called
fellows in the code: they share the work, need no leader, and any of them may hold the Lease. The
holder's identity shows whether the holder is a peer. Every other holder is a foreign holder; its
Lease must expire first, as in client-go.

Each worker measures its permitted time with its own clock, from a moment that is certainly before
the renewal. For the holder, this is the start of its write. For a peer, it is the start of its last
read that did not yet show the renewal. A foreign candidate counts the whole duration from the
moment at which it sees the renewal, which is later. So this worker has stopped before a foreign
candidate starts, whatever hangs or dies.

If the remaining time of a peer is unknown or too short, the peer writes itself into the Lease in
place of the current holder: a renewal by one peer counts for all of them.

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

# The fraction of a Lease's duration during which this process may work. The rest is for clock drift
# and for cancelling calls.
_USED_SHARE: Final = 0.9
# The interval between a peer's reads, as a fraction of a Lease's duration: short enough that the
# peer sees each renewal in time.
_LOOK_SHARE: Final = 0.15
# Interval at which the warning about a Lease in an unknown state is repeated.
_AGAIN_SECONDS: Final = 60.0
# Largest random fraction by which the pause of a waiting process is extended (client-go:
# JitterFactor, 1.2).
_JITTER: Final = 0.2


class Standing(Enum):
    """Who holds the Lease, as far as this process knows."""

    HELD = "held"
    FELLOW = "fellow"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"

    @property
    def is_ours(self) -> bool:
        """True if this process or a peer holds the Lease."""
        return self in {Standing.HELD, Standing.FELLOW}


class Leases(Protocol):
    """The methods of `workers.kube.resources.KubeResources` that an election uses."""

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> JsonObject:
        """Read one object live from the API server."""

    def create(self, resource: Resource, item: Mapping[str, Any]) -> JsonObject:
        """Create an object with POST."""

    def update(self, resource: Resource, item: Mapping[str, Any]) -> JsonObject:
        """Replace an object with a PUT, conditional on its resourceVersion."""


@dataclass(slots=True)
class Election:
    """This process's candidacy for one Lease.

    Call `step` every `pause_seconds`, but never from two threads at once.

    Args:
        leases: reads and writes Leases; each call must end within the renew deadline.
        name: the name of the Lease (F-020).
        identity: the identity of this process; also used to recognise peers.
        settings: the leader election settings from the flags.
        clock: returns the time in seconds of a local clock that keeps running while the
            machine is suspended.
        now: returns the wall-clock time to write into the Lease; it is never compared with
            another clock.
        on_slow: called when the holder had to read the Lease before it could renew it.
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

        If `is_in_doubt` is True afterwards, the holder may be a peer that already knows this Redis
        by a newer name. The next step finds out whether that is so.

        While the API server does not answer, work continues until the last renewal expires. After
        that, the standing is UNKNOWN in this process, but its peers may still know the holder.
        """
        self.is_in_doubt = False
        try:
            self.standing = self._try()
            self.is_fresh, self.trouble = True, ""
        except ApiError as error:
            self.leave(error)
        return self.standing

    def leave(self, why: object) -> None:
        """Stop taking and renewing the Lease; work continues until the last renewal expires."""
        self.is_fresh = False
        if not self.may_work():
            now = self.clock()
            if self.standing is not Standing.UNKNOWN:
                _log.warning(
                    "could not renew the Lease, so this worker stops the work that requires it",
                    lease=self.name,
                    err=why,
                )
                self._told_at = now
            elif now - self._told_at >= _AGAIN_SECONDS:  # also if it was never known
                _log.warning(
                    "could not read the Lease, so this worker does no work that requires it",
                    lease=self.name,
                    err=why,
                )
                self._told_at = now
            self.standing = Standing.UNKNOWN
            self.trouble = (
                f"Lease {self.name} could not be read, so this worker does no work that requires "
                f"it: {why}"
            )

    def pause_seconds(self) -> float:
        """Return the time until the next step."""
        period = self.settings.retry_period_seconds
        if self.standing is Standing.HELD:
            return period
        if self.standing is not Standing.FOREIGN:
            period = self._look_seconds
        return period * (1 + _JITTER * random.random())  # noqa: S311 - no secret

    def release(self) -> None:
        """Give up the Lease if this process or a peer holds it, so that others need not wait.

        Only the last of the peers calls this (F-018).
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
            _log.warning(
                "could not release the Lease; it expires automatically", lease=self.name, err=error
            )

    @property
    def _look_seconds(self) -> float:
        settings = self.settings
        return min(settings.retry_period_seconds, settings.lease_duration_seconds * _LOOK_SHARE)

    def _try(self) -> Standing:
        """Renew the Lease, or read it and act on it; retry at once if another process wrote it."""
        return self._renew() or self._try_once() or self._try_once() or Standing.UNKNOWN

    def _renew(self) -> Standing | None:
        """Renew the Lease without reading it first; None if that fails.

        The renewal is based on this process's last write.

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
        # As in client-go, the duration is the one that the holder wrote, counted from the moment at
        # which this process saw the renewal.
        duration = float(spec.get("leaseDurationSeconds") or self.settings.lease_duration_seconds)
        if not self.holder or self.clock() - self._seen_at > duration:
            return self._write(lease, is_new=True)
        if not self.identity.is_fellow(self.holder):
            # A csi-fleet holder that is not recognised may be a peer that is already using a new
            # name of this Redis.
            self.is_in_doubt = (
                OURS in self.holder and self.holder != self._doubted and self.may_work()
            )
            self._doubted = self.holder
            return self.standing if self.is_in_doubt else Standing.FOREIGN
        return self._stand_by(lease, duration)

    def _stand_by(self, lease: JsonObject, duration: float) -> Standing | None:
        """Rely on a peer's renewal if it is valid until the next read; otherwise take the Lease."""
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
        _log.info("acquired the Lease", lease=self.name, identity=str(self.identity))

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
        # The API accepts only whole seconds, and at least one.
        spec["leaseDurationSeconds"] = max(1, round(self.settings.lease_duration_seconds))
        spec["renewTime"] = moment
        labels = {**(metadata.get("labels") or {}), **dict(self.settings.labels)}
        if labels:
            metadata["labels"] = labels
        return {**lease, "metadata": metadata, "spec": spec}


def holder_of(lease: Mapping[str, Any]) -> str:
    """Return `spec.holderIdentity`; "" if the Lease has no holder."""
    return (lease.get("spec") or {}).get("holderIdentity") or ""
