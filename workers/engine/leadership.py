"""Keeping csi-provisioner's Lease in drop-in mode, so that a roll-over either way is safe (M-020).

Our workers share the work and need no leader. But while a csi-provisioner of the same driver
holds the Lease, both would provision, so we wait until it is free; and while we hold it, a
csi-provisioner that is started waits for us. Any of our workers may hold it: the Lease names its
holder a second time in an annotation that csi-provisioner leaves as it is, so a holder without it
is a stranger.

Differences from client-go's elector: losing the Lease ends no process (F-023), it pauses the
driver's lanes; a worker stands by for its fellows without pausing.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from workers.engine.leasename import lease_name
from workers.errors import ApiError, QueueUnavailable
from workers.kube import paths
from workers.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from workers.observability.health import LeaderHealth
from workers.queue.keys import lane_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from workers.config.settings import LeaderSettings
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource
    from workers.observability.metrics import Metrics
    from workers.queue.workqueue import WorkQueue

_log = logging.getLogger(__name__)

# Equal to spec.holderIdentity while one of us holds the Lease.
ANN_HOLDER: Final = "csi-fleet.io/holder"
_JITTER: Final = 0.2


class Standing(Enum):
    """Whose the Lease is."""

    HELD = "held"
    FELLOW = "fellow"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"

    @property
    def may_work(self) -> bool:
        """Whether the driver's claims may be worked on."""
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
    """One Lease as one worker sees it. `step` every retry period; one thread.

    Args:
        leases: the API server.
        name: of the Lease (F-020).
        identity: host name and a part unique per process (F-021).
        settings: flags.
        clock: monotonic seconds.
        now: wall clock, for what others read in the Lease; never compared with theirs.
        on_slow: called when the holder had to read the Lease before it renewed it.
    """

    leases: Leases
    name: str
    identity: str
    settings: LeaderSettings
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    on_slow: Callable[[], None] = lambda: None
    standing: Standing = Standing.UNKNOWN
    holder: str = ""
    _seen: tuple[str, str] = ("", "")
    _seen_at: float = field(default=float("-inf"))
    _agreed_at: float = field(default=float("-inf"))
    is_fresh: bool = False
    _mine: JsonObject | None = None

    def step(self) -> Standing:
        """Take, renew or watch the Lease once.

        An API server that does not answer changes nothing until the renew deadline is over; then
        a stranger may have taken the Lease, so nothing may be worked on.
        """
        try:
            self.standing = self._try()
            self._agreed_at, self.is_fresh = self.clock(), True
        except ApiError as error:
            self.is_fresh = False
            overdue = self.clock() - self._agreed_at > self.settings.renew_deadline_seconds
            if overdue and self.standing.may_work:
                _log.warning("lease %s: not renewed in time: %s", self.name, error)
            if overdue:
                self.standing = Standing.UNKNOWN
        return self.standing

    def release(self) -> None:
        """Give the Lease back if this process holds it, so that nobody has to wait (F-018)."""
        if self.standing is not Standing.HELD:
            return
        self.standing = Standing.UNKNOWN
        try:
            lease = self._read()
            if lease["spec"].get("holderIdentity") == self.identity:
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                self.leases.update(paths.LEASES, {**lease, "spec": spec})
        except ApiError as error:
            _log.warning("lease %s runs out by itself: %s", self.name, error)

    def _try(self) -> Standing:
        """Once more at once when somebody was faster: then the Lease says who."""
        return self._renew() or self._try_once() or self._try_once() or Standing.UNKNOWN

    def _renew(self) -> Standing | None:
        """The holder's fast path: write over what it wrote last, unread; None if that is not it.

        Source: client-go, leaderelection.go tryAcquireOrRenew, step 1.
        """
        mine, self._mine = self._mine, None
        age = self.clock() - self._seen_at
        if self.standing is not Standing.HELD or age > self.settings.lease_duration_seconds:
            return None
        return None if mine is None else self._write(mine, is_new=False)

    def _try_once(self) -> Standing | None:
        """None if the Lease changed under our hands."""
        try:
            lease = self._read()
        except NotFoundError:
            return self._create()
        spec = lease.get("spec") or {}
        self.holder = spec.get("holderIdentity") or ""
        seen = (self.holder, str(spec.get("renewTime") or ""))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self.clock()
        if self.holder == self.identity:
            if self.standing is Standing.HELD:
                self.on_slow()
            return self._write(lease, is_new=False)
        # Its duration, as it says; by our clock since we saw it renewed, as client-go does.
        duration = float(spec.get("leaseDurationSeconds") or self.settings.lease_duration_seconds)
        if not self.holder or self.clock() - self._seen_at > duration:
            return self._write(lease, is_new=True)
        return Standing.FELLOW if is_ours(lease) else Standing.FOREIGN

    def _read(self) -> JsonObject:
        return self.leases.get(paths.LEASES, self.name, namespace=self.settings.namespace)

    def _create(self) -> Standing | None:
        body = {
            "apiVersion": paths.LEASES.api_version,
            "kind": paths.LEASES.kind,
            "metadata": {"name": self.name, "namespace": self.settings.namespace},
            "spec": {},
        }
        try:
            self._sent(self.leases.create(paths.LEASES, self._filled(body, is_new=True)))
        except AlreadyExistsError:
            return None
        return Standing.HELD

    def _write(self, lease: JsonObject, *, is_new: bool) -> Standing | None:
        try:
            self._sent(self.leases.update(paths.LEASES, self._filled(lease, is_new=is_new)))
        except (ConflictError, NotFoundError):
            return None
        if is_new:
            _log.info("lease %s taken as %s", self.name, self.identity)
        return Standing.HELD

    def _sent(self, lease: JsonObject) -> None:
        self.holder = self.identity
        self._seen = (self.identity, str(lease["spec"].get("renewTime") or ""))
        self._seen_at = self.clock()
        self._mine = lease

    def _filled(self, lease: JsonObject, *, is_new: bool) -> JsonObject:
        spec, metadata = dict(lease.get("spec") or {}), dict(lease["metadata"])
        moment = datetime.fromtimestamp(self.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if is_new:
            is_change = bool(spec.get("renewTime"))
            spec["acquireTime"] = moment
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + is_change
        spec["holderIdentity"] = self.identity
        # Whole seconds, at least one: the API refuses others.
        spec["leaseDurationSeconds"] = max(1, round(self.settings.lease_duration_seconds))
        spec["renewTime"] = moment
        annotations = {**(metadata.get("annotations") or {}), ANN_HOLDER: self.identity}
        metadata["annotations"] = annotations
        labels = {**(metadata.get("labels") or {}), **dict(self.settings.labels)}
        if labels:
            metadata["labels"] = labels
        return {**lease, "metadata": metadata, "spec": spec}


def is_ours(lease: Mapping[str, Any]) -> bool:
    """Tell whether one of our workers wrote itself into the Lease as its holder."""
    holder = (lease.get("spec") or {}).get("holderIdentity") or ""
    annotations = lease["metadata"].get("annotations") or {}
    return bool(holder) and annotations.get(ANN_HOLDER) == holder


class Lanes(Protocol):
    """Holding back and letting go all work of a driver."""

    def pause(self, driver: str, reason: str, seconds: float) -> None:
        """Admit nothing of the driver for so long."""

    def resume(self, driver: str) -> None:
        """Admit again."""


class QueueLanes:
    """The lanes of a driver in the queue.

    Args:
        queue: where they are.
        kinds: of keys a driver has.
    """

    def __init__(self, queue: WorkQueue, kinds: Iterable[str]) -> None:
        self._queue = queue
        self._kinds = tuple(kinds)

    def pause(self, driver: str, reason: str, seconds: float) -> None:
        """Admit nothing of the driver for so long."""
        for kind in self._kinds:
            self._queue.pause(lane_name(kind, driver), reason, seconds=seconds, kind="lease")

    def resume(self, driver: str) -> None:
        """Admit again."""
        for kind in self._kinds:
            self._queue.resume(lane_name(kind, driver), kind="lease")


class Leadership:
    """All Leases of one worker process.

    Args:
        leases: the API server.
        settings: flags.
        identity: of this process.
        lanes: told what follows.
        lease_name: from a driver's name to its Lease's.
        metrics: where the gauges are (F-024), None for none.
    """

    def __init__(
        self,
        leases: Leases,
        settings: LeaderSettings,
        identity: str,
        lanes: Lanes,
        *,
        lease_name: Callable[[str], str] = lease_name,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leases = leases
        self._settings = settings
        self._identity = identity
        self._lanes = lanes
        self._lease_name = lease_name
        self._metrics = metrics
        self._clock = clock
        self._elections: dict[str, Election] = {}
        self._working: dict[str, bool] = {}
        self._healths: dict[str, LeaderHealth] = {}
        self._stopped = threading.Event()

    def check(self) -> str:
        """Say which Lease of ours is overdue; "" for none (F-022)."""
        return "; ".join(filter(None, (one.check() for one in tuple(self._healths.values()))))

    def step(self, drivers: Iterable[tuple[str, str]]) -> None:
        """Look after the Lease of every (queue name, driver name) once.

        Raises:
            QueueUnavailable: Redis does not answer; the next step repeats what was not told.
        """
        for queue_name, driver_name in drivers:
            election = self._elections.get(queue_name)
            if election is None:
                election = self._elections[queue_name] = Election(
                    self._leases,
                    self._lease_name(driver_name),
                    self._identity,
                    self._settings,
                    clock=self._clock,
                    on_slow=self._slow_path(self._lease_name(driver_name)),
                )
                self._healths[queue_name] = LeaderHealth(
                    election.name, self._settings.lease_duration_seconds, self._clock
                )
            standing = election.step()
            self._tell(queue_name, election)
            self._follow(queue_name, election, may_work=standing.may_work)

    def _follow(self, queue_name: str, election: Election, *, may_work: bool) -> None:
        if may_work:
            if not self._working.get(queue_name):
                self._lanes.resume(queue_name)
        else:
            if self._working.get(queue_name, True):
                _log.warning(
                    "driver %s waits: lease %s/%s is held by %s",
                    queue_name,
                    self._settings.namespace,
                    election.name,
                    election.holder or "nobody we know",
                )
            # Longer than a period, so that it lasts until the next step, and ends without us.
            span = 3 * self._settings.retry_period_seconds
            self._lanes.pause(queue_name, f"lease held by {election.holder}", span)
        self._working[queue_name] = may_work

    def may_work(self, queue_name: str) -> bool:
        """Tell what the last step said of a driver."""
        return self._working.get(queue_name, False)

    def run(self, drivers: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """Step every retry period until `stop`; never raises."""
        while not self._stopped.wait(self._pause_seconds()):
            try:
                self.step(drivers())
            except QueueUnavailable as error:
                _log.warning("leases: %s", error)
            except Exception:  # noqa: BLE001 - the loop must outlive any defect
                _log.exception("unexpected error while keeping the leases")

    def stop(self) -> None:
        """End `run` and give back what is held; call after the last work ended."""
        self._stopped.set()
        for election in self._elections.values():
            election.release()

    def _pause_seconds(self) -> float:
        return self._settings.retry_period_seconds * (1 + _JITTER * random.random())  # noqa: S311

    def _slow_path(self, name: str) -> Callable[[], None]:
        """The counter of one Lease, at 0 from the start as client-go's (F-024)."""
        if self._metrics is None:
            return lambda: None
        return self._metrics.leader_slowpath.labels(name).inc

    def _tell(self, queue_name: str, election: Election) -> None:
        """Gauge and health of one Lease (F-022, F-024)."""
        is_holder = election.standing is Standing.HELD
        if self._metrics is not None:
            self._metrics.leader_status.labels(election.name).set(int(is_holder))
        if not is_holder:
            self._healths[queue_name].lost()
        elif election.is_fresh:
            self._healths[queue_name].renewed()
