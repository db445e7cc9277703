"""Asks a driver for the health of its volumes, in one of four ways (VH-001, VHD-010)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.controllers.health.decide import Report, report_of, report_of_condition
from workers.controllers.health.spec import SPEC
from workers.drivers.operations import OPERATIONS
from workers.errors import DriverAway
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from workers.controllers.health.settings import HealthSettings
    from workers.drivers.driver import Driver
    from workers.engine.live import DriverPass

_log = get_logger(__name__)
_SILENT: Final = frozenset({errors.UNAVAILABLE, errors.DEADLINE_EXCEEDED})
FAILURES: Final = (CsiError, DriverAway)
"""How a call fails. A driver that crashes when it is asked must not be asked again at once."""
MOST_SECONDS: Final = 600.0
"""Longest time for a list, because a pass of 30 min counts as stuck (`Passes`)."""


class Way(Enum):
    """How a driver reports health.

    Attributes:
        method: the method that is called in each poll.
        capability: what the driver has if it implements the method.
        is_list: whether one call covers all volumes.
        is_old: whether the driver reports VolumeCondition.
    """

    LIST_HEALTH = ("ControllerListVolumeHealth", "LIST_VOLUME_HEALTH", True, False)
    GET_HEALTH = ("ControllerGetVolumeHealth", "GET_VOLUME_HEALTH", False, False)
    LIST_CONDITIONS = ("ListVolumes", "LIST_VOLUMES", True, True)
    GET_CONDITIONS = ("ControllerGetVolume", "GET_VOLUME", False, True)

    def __init__(self, method: str, capability: str, is_list: bool, is_old: bool) -> None:
        self.method, self.capability = method, capability
        self.is_list, self.is_old = is_list, is_old


def settings_of(driver: Driver) -> HealthSettings:
    """Return the controller's settings for one driver."""
    found: HealthSettings = driver.settings.controllers[SPEC.name]
    return found


def way_of(driver: Driver) -> Way | None:
    """Return how the driver reports health; None if it does not (VH-001, VHD-010, VHD-013)."""
    if driver.settings.node.enabled:
        return None
    has_old = settings_of(driver).reads_conditions and driver.supports("VOLUME_CONDITION")
    ways = (one for one in Way if has_old or not one.is_old)
    return next((one for one in ways if driver.supports(one.capability)), None)


class Reader:
    """The calls of one pass.

    Attributes:
        can_confirm: whether the driver can be asked about one volume.
        at_once: how many volumes it may be asked about at the same time.
    """

    def __init__(self, work: DriverPass, way: Way) -> None:
        self._work, self._way, self._settings = work, way, settings_of(work.driver)
        self._get = Way.GET_CONDITIONS if way.is_old else Way.GET_HEALTH
        self.can_confirm = work.driver.supports(self._get.capability)
        most, operation = (
            self._settings.worker_threads,
            OPERATIONS[f"Controller/{self._get.method}"],
        )
        self.at_once = min(most, work.driver.limits.get(operation, most))

    def all(self) -> dict[str, Report | None]:
        """Return the report of each listed volume; None if the driver says nothing about it.

        Raises:
            CsiError: a page failed, a page token was repeated, or the list took too long; nothing
                is known then (VH-013).
            DriverAway: the connection was lost.
        """
        found: dict[str, Report | None] = {}
        with self._probe(self._way):
            for page in self._work.pages(
                *_call_of(self._way),
                timeout_seconds=self._settings.timeout_seconds,
                most_seconds=MOST_SECONDS,
                too_long=f"the list takes longer than {MOST_SECONDS:g} s",
            ):
                for one in page.entries:
                    if self._way.is_old:
                        found[one.volume.volume_id] = _condition(one)
                    else:
                        found[one.volume_id] = report_of(one)
        return found

    def each(self, handles: Sequence[str]) -> tuple[dict[str, Report | None], int]:
        """Ask about these volumes, at most `at_once`, at the same time.

        Returns:
            The reports, without those of volumes whose call failed (VH-013), and the number of
            calls if the driver answered none of them, otherwise 0.
        """
        with ThreadPoolExecutor(self.at_once, "health") as threads:
            # With the context, which has the lease, a call ends when others may work.
            calls = {one: threads.submit(copy_context().run, self._try, one) for one in handles}
            answers = {one: call.result() for one, call in calls.items()}
        found = {h: one for h, one in answers.items() if not isinstance(one, FAILURES)}
        return found, len(answers) if all(map(_is_silence, answers.values())) else 0

    def _try(self, handle: str) -> Report | CsiError | DriverAway | None:
        method, request, answer_type = _call_of(self._get)
        seconds = self._settings.timeout_seconds
        try:
            with self._probe(self._get):
                answer = self._work.call(
                    method, request(volume_id=handle), answer_type, timeout_seconds=seconds
                )
            return _condition(answer) if self._way.is_old else report_of(answer.volume_health)
        except FAILURES as error:
            _log.warning("Check controller volume health error", volume=handle, err=error)
            return error

    @contextmanager
    def _probe(self, way: Way) -> Iterator[None]:
        """Count and time one probe; a list is one probe, whatever its pages (VH-050)."""
        self._work.lease.check()
        metrics, labels = self._work.context.metrics, (self._work.driver.name, way.method)
        result = "error"
        try:
            with metrics.health_probe_seconds.labels(*labels).time():
                yield
            result = "success"
        finally:
            metrics.health_probes.labels(*labels, result).inc()


def _call_of(way: Way) -> tuple[str, Any, Any]:
    """Return the full method name, and the types of its request and response."""
    request, answer = (getattr(csi, f"{way.method}{end}") for end in ("Request", "Response"))
    return f"Controller/{way.method}", request, answer


def _is_silence(answer: Report | CsiError | DriverAway | None) -> bool:
    is_silent = isinstance(answer, CsiError) and answer.code in _SILENT
    return is_silent or isinstance(answer, DriverAway)


def _condition(volume: Any) -> Report | None:
    status = volume.status
    told = status.HasField("volume_condition")
    return report_of_condition(status.volume_condition) if told else None
