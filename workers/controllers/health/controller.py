"""Polls each driver for the health of its volumes, and writes it to their claims.

All polls of a driver use one key. A poll is one or more passes: each makes one list, or asks about
as many volumes as may be asked about at the same time. Between two passes, a driver that accepts
one call at a time gets its other calls, and another worker may take over. The claim's status is the
durable state; the key's mark holds what the status cannot.
"""

from __future__ import annotations

import random
import time
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from workers.controllers.health import decide
from workers.controllers.health.decide import Report, owned, slim, stored
from workers.controllers.health.reading import FAILURES, MOST_SECONDS, Reader, settings_of, way_of
from workers.controllers.health.spec import KIND, SPEC, poll_key
from workers.deadlines import NONE, Deadline
from workers.engine.controller import Due
from workers.engine.live import DriverPass, Gone
from workers.engine.outcome import Outcome, done, wait
from workers.errors import ApiError
from workers.kube import paths
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from workers.controllers.health.decide import Owned
    from workers.controllers.health.reading import Way
    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.controller import Means
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.queue.locks import Lock

_log = get_logger(__name__)

GET_AT_MOST: Final = 50
"""Up to this many claims are read one by one; above it, one LIST costs the API server less."""

MOST_KNOWN: Final = 500
"""With more unhealthy claims, each poll reads all claims; a mark holds at most 64 KiB (VHD-006)."""

SILENT_CALLS: Final = 10
"""Number of calls in a row without an answer that ends a poll; at least `--worker-threads`."""


class HealthController:
    """Keeps `status.healthStatus` of claims in line with what their drivers report."""

    spec = SPEC

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """Return no lock, because reading a volume's health disturbs no operation."""
        del key, driver
        return ()

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """Make the next pass of a poll.

        Raises:
            ApiError: volumes or claims cannot be read.
        """
        assert driver is not None
        way = way_of(driver)
        if way is None:
            return done("the driver reports no health")
        return Poll(DriverPass(context, key, lease, paths.CLAIMS, driver=driver), way).run()

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """Return the polls of a driver that reports health; a list is polled less often."""
        del context
        if driver is None or (way := way_of(driver)) is None:
            return ()
        settings = settings_of(driver)
        seconds = settings.list_seconds if way.is_list else settings.get_seconds
        return (Due(poll_key(driver.queue_name), seconds),)

    def build(self, means: Means, parts: Mapping[str, Any]) -> dict[str, Listed]:
        """Return the unfinished polls of this process by driver, none at first."""
        del means, parts
        return {}

    def serves(self, driver: Driver) -> bool:
        """Return True if the driver reports health (VH-002)."""
        return way_of(driver) is not None

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """Return one: a pass asks about several volumes at a time itself."""
        del driver
        return {KIND: 1}


class Listed(NamedTuple):
    """What a process keeps of an unfinished poll.

    Attributes:
        until: the monotonic time after which the volumes are listed again.
        volumes: the driver's bound volumes.
        known: the same as in `State`; used if there are too many of them for a mark.
    """

    until: float
    volumes: Sequence[Owned]
    known: dict[str, str]


@dataclass
class State:
    """What a pass leaves in the key's mark for the next one.

    Attributes:
        known: the report digest of each unhealthy claim, by its uid; None if that is unknown, so
            that all claims are read.
        missing: the uids of unhealthy claims whose volume was missing from the last list.
        after: the uid of the last claim whose volume was asked about; empty at the beginning.
        silent: the number of calls in a row that the driver did not answer.
        counts: the number of volumes by status, as far as the poll has come.
        retry: the `Deadline` until which no status is written, because the API server drops the
            field; empty if it stores the field.
    """

    known: dict[str, str] | None = None
    missing: list[str] = field(default_factory=list)
    after: str = ""
    silent: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    retry: list[float | str] = field(default_factory=list)

    @classmethod
    def read(cls, mark: Mapping[str, Any]) -> State:
        """Return the state in a mark; fields that another version wrote are ignored."""
        names = mark.keys() & {one.name for one in fields(cls)}
        return cls(**{name: mark[name] for name in names})


class Poll:
    """One pass of a poll of one driver."""

    def __init__(self, work: DriverPass, way: Way) -> None:
        self.work, self.way, self.queue_name = work, way, work.key.driver
        self.metrics, self.driver = work.context.metrics, work.driver.name
        self.settings, self.reader = settings_of(work.driver), Reader(work, way)
        self.state = State.read(work.lease.mark)
        self.known = self.state.known or {}
        self.listed: dict[str, Listed] = work.context.parts[SPEC.name]
        self.until = time.monotonic() + 2 * MOST_SECONDS

    def run(self) -> Outcome:
        """Make one pass."""
        if self.way.is_list and not (self.reader.can_confirm and self.state.missing):
            return self._list()
        return self._ask()

    def _list(self) -> Outcome:
        """Settle all volumes by the driver's list, except unhealthy ones that are missing from it.

        Such a volume has recovered if the driver confirms it, in a later pass, or, if the driver
        cannot be asked about one volume, if the list before lacks it too (VH-012).
        """
        state = self.state
        try:
            reports = self.reader.all()
        except FAILURES as error:
            _log.error("Check controller volume health error", err=error)
            return done("listing failed")
        if state.known == {} and not any(map(_is_bad, reports.values())):
            return self._end("all volumes are healthy")
        missing = self._settle(self._volumes(is_new=True), reports)
        if not self.reader.can_confirm:
            recovered = [one for one in missing if one.uid in state.missing]
            self._settle(recovered, {one.handle: Report() for one in recovered})
            missing = [one for one in missing if one not in recovered]
        # Volumes whose calls fail are not always the first ones.
        state.missing = [one.uid for one in random.sample(missing, len(missing))][:MOST_KNOWN]
        return self._pause() if missing and self.reader.can_confirm else self._end()

    def _ask(self) -> Outcome:
        """Ask about the next volumes: of all volumes, or of those that are missing from a list.

        If the driver answers none of several calls in a row, the poll ends. The next one asks about
        the other volumes (VHD-004).
        """
        state, size, is_list = self.state, self.reader.at_once, self.way.is_list
        volumes = self._volumes(is_new=not is_list and not state.after)
        if is_list:
            by_uid = {one.uid: one for one in volumes}
            left = [by_uid[uid] for uid in state.missing if uid in by_uid]
        else:
            left = [one for one in volumes if one.uid > state.after]
        now, later, known = left[:size], left[size:], len(self.known)
        reports, silent = self.reader.each([one.handle for one in now])
        state.silent = state.silent + silent if silent else 0
        self._settle(now, reports)
        goes_on = later and state.silent < max(self.settings.worker_threads, SILENT_CALLS)
        state.missing = [one.uid for one in later] if is_list and goes_on else []
        state.after = now[-1].uid if later and not is_list else ""
        # A mark holds only some of many missing volumes; the next list contains the others.
        is_cut = is_list and state.known is None and len(self.known) < known
        return self._pause() if goes_on or is_cut else self._end()

    def _volumes(self, *, is_new: bool) -> Sequence[Owned]:
        """Return the driver's bound volumes, and find out which claims are known to be unhealthy.

        The volumes are listed at the beginning of a poll, and whenever this process has not listed
        them recently. The claims are then listed too, unless the mark already says which of them
        are unhealthy (VHD-006).
        """
        known, listed = self.state.known, self.listed.get(self.queue_name)
        if is_new or listed is None or time.monotonic() > listed.until:
            volumes = owned(self.work.context.kube.list(paths.VOLUMES), self.driver)
            if known is None:
                claims = self._claims(volumes).items()
                known = {uid: Report(bad).digest for uid, one in claims if (bad := stored(one))}
            uids = {one.uid for one in volumes}
            known = {uid: digest for uid, digest in known.items() if uid in uids}
            listed = Listed(time.monotonic() + self.settings.get_seconds, volumes, known)
            if is_new:
                self.state.known = known
        self.known = known if known is not None else listed.known
        self.listed[self.queue_name] = listed._replace(known=self.known)
        return listed.volumes

    def _settle(
        self, volumes: Sequence[Owned], reports: Mapping[str, Report | None]
    ) -> list[Owned]:
        """Bring the claims in line with the reports; return the unhealthy ones without a report.

        A claim is read only if it is or was unhealthy. Claims that become unhealthy are remembered
        before one of them is written: if this process dies, the next pass reads them, even if the
        driver finds their volumes healthy then.
        """
        before = dict(self.known)
        bad = {one.uid for one in volumes if _is_bad(reports.get(one.handle))}
        if new := bad - before.keys():
            self.known |= dict.fromkeys(new, "")
            self._remember("expect-health")
        wanted = [one for one in volumes if one.uid in self.known]
        claims = self._claims(wanted)
        for one in wanted:
            claim, report = claims.get(one.uid), reports.get(one.handle)
            if claim is None:
                del self.known[one.uid]
            elif report is not None and time.monotonic() < self.until:
                try:
                    self._write(claim, report)
                    self._tell(claim, report, before.get(one.uid, ""))
                except (ApiError, Gone) as error:
                    pvc = f"{one.namespace}/{one.name}"
                    _log.error("Reconcile PVC health status error", pvc=pvc, err=error)
                    continue
                self.known[one.uid] = report.digest
                if report.is_healthy:
                    del self.known[one.uid]
        # No report and no failure is a recovery.
        left = (one for one in wanted if one.uid in before and one.uid in self.known)
        return [one for one in left if one.handle not in reports]

    def _claims(self, wanted: Sequence[Owned]) -> dict[str, JsonObject]:
        """Return the live claims by uid, with the fields that a poll uses."""
        uids = {one.uid for one in wanted}
        found: Iterable[JsonObject | None] = (
            self.work.context.kube.list(paths.CLAIMS)
            if len(wanted) > GET_AT_MOST
            else (self.work.find(paths.CLAIMS, one.name, one.namespace) for one in wanted)
        )
        return {
            one["metadata"]["uid"]: slim(one)
            for one in found
            if one is not None and one["metadata"]["uid"] in uids
        }

    def _write(self, claim: JsonObject, report: Report) -> None:
        """Write the conditions if they differ, and notice whether the API server stored them.

        While the API server drops the field, one status is written now and then (VHD-002).
        """
        state, conditions, session = self.state, report.conditions, self.work.lease.session
        for status in {one.status for one in conditions}:
            state.counts[status] = state.counts.get(status, 0) + 1
        if stored(claim) == conditions:
            return
        if conditions and session.seconds_left(Deadline.read(state.retry)):
            return
        patch = decide.patch_of(conditions, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        step, how = "write-health", {"status": True, "is_exact": False}
        written = self.work.write_to(paths.CLAIMS, claim, step, lambda _: patch, **how)
        if not conditions:
            return
        if stored(written):
            if state.retry:
                _log.info("the API server stores the healthStatus field again")
            state.retry = NONE.data()
            return
        self.metrics.health_dropped.labels(self.driver).inc()
        if not state.retry:
            _log.warning(
                "The API server dropped the field healthStatus of a claim: its feature gate "
                "CSIVolumeHealth is off, or it is older than Kubernetes 1.37. The health is shown "
                "by events and metrics only. Turn on the feature gate to store it",
                pvc=f"{claim['metadata']['namespace']}/{claim['metadata']['name']}",
            )
        state.retry = session.later(self.settings.dropped_seconds).data()

    def _tell(self, claim: JsonObject, report: Report, last: str) -> None:
        """Emit the events about a change since the last poll (VH-023, VHD-011, VHD-012)."""
        if report.digest == last:
            return
        if report.unknown:
            for number in report.unknown_types:
                self.metrics.health_unknown.labels(self.driver, number).inc()
            text = decide.UNKNOWN_TEXT + "; ".join(report.unknown)
            self.work.event("Warning", decide.UNKNOWN, text, claim)
        if not self.way.is_old and not self.state.retry:
            return  # the status shows it
        if report.conditions:
            self.work.event("Warning", decide.ABNORMAL, report.summary, claim)
        elif report.is_healthy:
            self.work.event("Normal", decide.NORMAL, decide.NORMAL_TEXT, claim)

    def _pause(self) -> Outcome:
        """Return the outcome of a pass that does not end its poll; the next pass may begin now."""
        self._remember("remember-health")
        return wait(0, "more volumes are left")

    def _end(self, reason: str = "") -> Outcome:
        """Publish the counts, and return the outcome of the last pass of a poll."""
        state = self.state
        for status in ("DataLoss", "Inaccessible", "Degraded"):
            self.metrics.health_volumes.labels(self.driver, status).set(state.counts.get(status, 0))
        state.counts, state.silent = {}, 0
        self.listed.pop(self.queue_name, None)
        self._remember("remember-health")
        return done(reason or f"{len(self.known)} volumes are unhealthy")

    def _remember(self, step: str) -> None:
        if self.state.known is not None:
            self.state.known = self.known if len(self.known) <= MOST_KNOWN else None
        self.work.keep(step, asdict(self.state))


def _is_bad(report: Report | None) -> bool:
    return report is not None and not report.is_healthy


CONTROLLER: Final = HealthController()
