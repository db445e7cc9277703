"""Polls each driver for the health of its volumes, and writes it to their claims.

A poll is one reconcile of a driver's only key. The claim's status is the durable state. The key's
mark holds what the status cannot: which claims were unhealthy at the last poll, which volumes were
missing from its list, and when to try a field again that the API server dropped.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from workers.controllers.health import decide
from workers.controllers.health.reading import FAILURES, MOST_SECONDS, Reader, Way, way_of
from workers.controllers.health.rules import KIND, poll_key
from workers.controllers.health.spec import SPEC
from workers.deadlines import NONE, Deadline
from workers.engine.controller import Due
from workers.engine.live import DriverPass, Gone
from workers.engine.outcome import Outcome, done
from workers.errors import ApiError
from workers.kube import paths
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.controllers.health.decide import Owned, Report
    from workers.controllers.health.settings import HealthSettings
    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.queue.locks import Lock

_log = get_logger(__name__)

GET_AT_MOST: Final = 50
"""Up to this many claims are read one by one; above it, one LIST costs the API server less."""

MOST_KNOWN: Final = 500
"""With more unhealthy claims, each poll reads all claims; a mark holds at most 64 KiB (VHD-006)."""


class HealthController:
    """Keeps `status.healthStatus` of claims in line with what their drivers report."""

    spec = SPEC

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """Return no lock, because reading a volume's health disturbs no operation."""
        del key, driver
        return ()

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """Run one poll.

        Raises:
            ApiError: volumes or claims cannot be read.
        """
        assert driver is not None
        settings = settings_of(driver)
        way = way_of(driver, settings)
        if way is None:
            return done("the driver reports no health")
        work = DriverPass(context, key, lease, paths.CLAIMS, driver=driver)
        return Poll(work, settings, way).run()

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """Return the polls of a driver that reports health; a list is polled less often."""
        del context
        if driver is None or not self.serves(driver):
            return ()
        settings = settings_of(driver)
        way = way_of(driver, settings)
        is_list = way is not None and way.is_list
        seconds = settings.list_seconds if is_list else settings.get_seconds
        return (Due(poll_key(driver.queue_name), seconds),)

    def serves(self, driver: Driver) -> bool:
        """Return True if the driver reports health (VH-002)."""
        return way_of(driver, settings_of(driver)) is not None

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """Return one: a poll asks about several volumes at a time itself."""
        del driver
        return {KIND: 1}


def settings_of(driver: Driver) -> HealthSettings:
    """Return the controller's settings for one driver."""
    found: HealthSettings = driver.settings.controllers[SPEC.name]
    return found


@dataclass
class Poll:
    """One poll of one driver.

    Attributes:
        known: the report digest of each claim, by its uid, that was unhealthy at the last poll;
            None if that is unknown, so that every claim is read.
        missing: the uids of the claims whose volume was missing from the last list.
        retry_at: when a write is tried again, because the API server drops the field; empty if it
            stores the field.
    """

    work: DriverPass
    settings: HealthSettings
    way: Way
    known: dict[str, str] | None = None
    missing: frozenset[str] = frozenset()
    retry_at: Deadline = NONE
    now_known: dict[str, str] = field(default_factory=dict)
    now_missing: list[str] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        mark = self.work.lease.mark
        self.known = dict(mark["known"]) if "known" in mark else None
        self.missing = frozenset(mark.get("missing", ()))
        self.retry_at = Deadline.read(mark.get("retry", ()))
        self.reader = Reader(self.work, self.settings, self.way)
        self.writes_left = 0 if self.work.lease.session.seconds_left(self.retry_at) else 1

    def run(self) -> Outcome:
        """Ask the driver, compare with the claims, write what differs."""
        kube = self.work.context.kube
        reports: Mapping[str, Report | None] = {}
        if self.way.is_list:
            try:
                reports = self.reader.all()
            except FAILURES as error:
                _log.error("Check controller volume health error", err=error)
                return done("listing failed")
            if self.known == {} and all(one is None or one.is_healthy for one in reports.values()):
                self._count()
                return done("all volumes are healthy")
        volumes = decide.owned(kube.list(paths.VOLUMES), self.work.driver.name)
        if not self.way.is_list:
            reports = self.reader.each([one.handle for one in volumes])
        wanted = [one for one in volumes if self._matters(one, reports)]
        known = self._announce(wanted, reports)
        claims = self._claims(wanted)
        wanted = [one for one in wanted if one.uid in claims]
        bad = {uid for uid, claim in claims.items() if decide.stored(claim)} | set(self.known or ())
        if self.way.is_list:
            missing = [one for one in wanted if one.uid in bad and one.handle not in reports]
            reports = {**reports, **self._confirmed(missing)}
        for one in wanted:
            is_late = time.monotonic() > self.reader.until + MOST_SECONDS
            report = None if is_late else reports.get(one.handle)
            was_bad = one.uid in bad
            try:
                if report is not None:
                    self._settle(one, claims[one.uid], report, was_bad=was_bad)
                    continue
            except (ApiError, Gone) as error:
                _log.error("Reconcile PVC health status error", pvc=one.full_name, err=error)
            if was_bad or one.uid in known:  # no report and no failure is a recovery
                self.now_known[one.uid] = known.get(one.uid, "")
        self._remember()
        self._count()
        return done(f"{len(self.now_known)} volumes are unhealthy")

    def _matters(self, one: Owned, reports: Mapping[str, Report | None]) -> bool:
        """Return True if the claim must be read: it is or was unhealthy, or that is unknown."""
        return self.known is None or one.uid in self.known or _is_bad(one, reports)

    def _announce(
        self, wanted: list[Owned], reports: Mapping[str, Report | None]
    ) -> dict[str, str]:
        """Remember the claims that become unhealthy before one of them is written.

        If this process dies before the end of the poll, the next poll reads these claims, even if
        the driver finds their volumes healthy then. Return the digests by uid.
        """
        known = {one.uid: "" for one in wanted if _is_bad(one, reports)} | (self.known or {})
        if self.known is not None and known != self.known:
            mark = {**self.work.lease.mark, "known": known}
            if len(known) > MOST_KNOWN:
                del mark["known"]
            self.work.keep("expect-health", mark)
        return known

    def _claims(self, wanted: list[Owned]) -> dict[str, JsonObject]:
        """Return the live claims by uid, with the fields that a poll uses."""
        uids = {one.uid for one in wanted}
        found: Iterable[JsonObject | None] = (
            self.work.context.kube.list(paths.CLAIMS)
            if len(wanted) > GET_AT_MOST
            else (self.work.find(paths.CLAIMS, one.name, one.namespace) for one in wanted)
        )
        return {
            one["metadata"]["uid"]: decide.slim(one)
            for one in found
            if one is not None and one["metadata"]["uid"] in uids
        }

    def _confirmed(self, missing: list[Owned]) -> Mapping[str, Report | None]:
        """Return the reports of unhealthy volumes that are missing from the list (VH-012).

        The result lacks a volume if it is not certain yet whether it has recovered.
        """
        if self.reader.can_confirm:
            return self.reader.each([one.handle for one in missing])
        self.now_missing = [one.uid for one in missing if one.uid not in self.missing]
        return {one.handle: decide.Report() for one in missing if one.uid in self.missing}

    def _settle(self, one: Owned, claim: JsonObject, report: Report, *, was_bad: bool) -> None:
        """Bring one claim in line with its volume's report."""
        self.statuses.update({status for status, _, _ in report.conditions})
        self._write(claim, report)
        self._tell(one, claim, report, was_bad=was_bad)
        if not report.is_healthy:
            self.now_known[one.uid] = report.digest

    def _write(self, claim: JsonObject, report: Report) -> None:
        """Write the conditions if they differ, and notice whether the API server stored them."""
        if decide.stored(claim) == report.conditions:
            return
        if self.retry_at and report.conditions:
            if not self.writes_left:
                return
            self.writes_left -= 1
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        patch = decide.patch_of(report.conditions, now)
        written = self.work.write_to(
            paths.CLAIMS,
            claim,
            "write-health",
            lambda _: patch,
            status=True,
            is_exact=False,
        )
        if report.conditions:
            self._stored(claim, is_stored=bool(decide.stored(written)))

    def _stored(self, claim: JsonObject, *, is_stored: bool) -> None:
        if is_stored:
            if self.retry_at:
                _log.info("the API server stores the healthStatus field again")
            self.retry_at = NONE
            return
        self.work.context.metrics.health_dropped.labels(self.work.driver.name).inc()
        if not self.retry_at:
            _log.warning(
                "The API server dropped the field healthStatus of a claim: its feature gate "
                "CSIVolumeHealth is off, or it is older than Kubernetes 1.37. The health is shown "
                "by events and metrics only. Turn on the feature gate to store it",
                pvc=f"{claim['metadata']['namespace']}/{claim['metadata']['name']}",
            )
        self.retry_at = self.work.lease.session.later(self.settings.dropped_seconds)
        self.writes_left = 0

    def _tell(self, one: Owned, claim: JsonObject, report: Report, *, was_bad: bool) -> None:
        """Emit the events about a change since the last poll (VH-023, VHD-011, VHD-012)."""
        if self.known is None:
            is_new = bool(report.unknown) or decide.stored(claim) != report.conditions
        else:
            now = "" if report.is_healthy else report.digest
            is_new = self.known.get(one.uid, "") != now
        if not is_new:
            return
        if report.unknown:
            for number in report.unknown_types:
                self.work.context.metrics.health_unknown.labels(self.work.driver.name, number).inc()
            text = decide.UNKNOWN_TEXT + "; ".join(report.unknown)
            self.work.event("Warning", decide.UNKNOWN, text, claim)
        if not self.way.is_old and not self.retry_at:
            return  # the status shows it
        if report.conditions:
            self.work.event("Warning", decide.ABNORMAL, report.summary, claim)
        elif was_bad and report.is_healthy:
            self.work.event("Normal", decide.NORMAL, decide.NORMAL_TEXT, claim)

    def _remember(self) -> None:
        mark: dict[str, Any] = {}
        if len(self.now_known) <= MOST_KNOWN:
            mark["known"] = self.now_known
        if self.now_missing:
            mark["missing"] = self.now_missing[:MOST_KNOWN]
        if self.retry_at:
            mark["retry"] = self.retry_at.data()
        self.work.keep("remember-health", mark)

    def _count(self) -> None:
        for status in ("DataLoss", "Inaccessible", "Degraded"):
            gauge = self.work.context.metrics.health_volumes
            gauge.labels(self.work.driver.name, status).set(self.statuses[status])


def _is_bad(one: Owned, reports: Mapping[str, Report | None]) -> bool:
    report = reports.get(one.handle)
    return report is not None and not report.is_healthy


CONTROLLER: Final = HealthController()
