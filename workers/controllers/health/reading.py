"""Asks a driver for the health of its volumes, in one of four ways (VH-001, VHD-010)."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.controllers.health.decide import Report, report_of, report_of_condition
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
SILENT_CALLS: Final = 10
"""Number of calls in a row without an answer that ends a poll; at least `--worker-threads`."""
MOST_SECONDS: Final = 600.0
"""Longest time for the calls of a poll, because a pass of 30 min counts as stuck (`Passes`)."""
_MESSAGES: Final = {
    "ControllerListVolumeHealth": (
        csi.ControllerListVolumeHealthRequest,
        csi.ControllerListVolumeHealthResponse,
    ),
    "ControllerGetVolumeHealth": (
        csi.ControllerGetVolumeHealthRequest,
        csi.ControllerGetVolumeHealthResponse,
    ),
    "ListVolumes": (csi.ListVolumesRequest, csi.ListVolumesResponse),
    "ControllerGetVolume": (csi.ControllerGetVolumeRequest, csi.ControllerGetVolumeResponse),
}


class Way(Enum):
    """How a driver reports health; the value is the method that is called in each poll."""

    LIST_HEALTH = "ControllerListVolumeHealth"
    GET_HEALTH = "ControllerGetVolumeHealth"
    LIST_CONDITIONS = "ListVolumes"
    GET_CONDITIONS = "ControllerGetVolume"

    @property
    def is_list(self) -> bool:
        """Whether one call covers all volumes."""
        return self in {Way.LIST_HEALTH, Way.LIST_CONDITIONS}

    @property
    def is_old(self) -> bool:
        """Whether the driver reports VolumeCondition."""
        return self in {Way.LIST_CONDITIONS, Way.GET_CONDITIONS}


def way_of(driver: Driver, settings: HealthSettings) -> Way | None:
    """Return how the driver reports health; None if it does not (VH-001, VHD-010, VHD-013)."""
    supports = driver.supports
    if driver.settings.node.enabled:
        return None
    if supports("LIST_VOLUME_HEALTH"):
        return Way.LIST_HEALTH
    if supports("GET_VOLUME_HEALTH"):
        return Way.GET_HEALTH
    if not settings.reads_conditions or not supports("VOLUME_CONDITION"):
        return None
    if supports("LIST_VOLUMES"):
        return Way.LIST_CONDITIONS
    return Way.GET_CONDITIONS if supports("GET_VOLUME") else None


class Reader:
    """The calls of one poll.

    Attributes:
        until: the monotonic time after which no further call is made.
    """

    def __init__(self, work: DriverPass, settings: HealthSettings, way: Way) -> None:
        self._work, self._settings, self._way = work, settings, way
        self.until = time.monotonic() + MOST_SECONDS
        self._method = (Way.GET_CONDITIONS if way.is_old else Way.GET_HEALTH).value
        self.can_confirm = work.driver.supports("GET_VOLUME" if way.is_old else "GET_VOLUME_HEALTH")

    def all(self) -> dict[str, Report | None]:
        """Return the report of each listed volume; None if the driver says nothing about it.

        Raises:
            CsiError: a page failed, a page token was repeated, or the list took too long; nothing
                is known then (VH-013).
            DriverAway: the connection was lost.
        """
        method, found = self._way.value, dict[str, Report | None]()
        with self._probe(method):
            token, seen = "", set[str]()
            while not seen or token:
                problem = "the driver repeats a page token" if token in seen else ""
                if time.monotonic() > self.until:
                    problem = f"the list takes longer than {MOST_SECONDS:g} s"
                if problem:
                    raise CsiError(errors.ABORTED, problem, rpc=method)
                seen.add(token)
                page = self._call(method, starting_token=token)
                for one in page.entries:
                    if self._way.is_old:
                        found[one.volume.volume_id] = _condition(one)
                    else:
                        found[one.volume_id] = report_of(one)
                token = page.next_token
        return found

    def one(self, handle: str) -> Report | None:
        """Return the report of one volume; None if the driver says nothing about it.

        Raises:
            CsiError: the call failed.
            DriverAway: the connection was lost.
        """
        with self._probe(self._method):
            answer = self._call(self._method, volume_id=handle)
        return _condition(answer) if self._way.is_old else report_of(answer.volume_health)

    def each(self, handles: Sequence[str]) -> dict[str, Report | None]:
        """Ask about each volume; the result lacks volumes whose call failed (VH-013).

        If the driver answers none of several calls in a row, or is slow, the other volumes wait for
        the next poll (VHD-004). The order changes, so that each volume is asked about at some time.
        """
        found: dict[str, Report | None] = {}
        size, silent = self._settings.worker_threads, 0
        most = min(size, self._work.driver.limits.get("get-volume-health", size))
        handles = random.sample(handles, len(handles))
        with ThreadPoolExecutor(most, "health") as threads:
            for start in range(0, len(handles), size):
                some = handles[start : start + size]
                # With the context, which has the lease, a call ends when others may work.
                calls = {h: threads.submit(copy_context().run, self._try, h) for h in some}
                answers = {h: call.result() for h, call in calls.items()}
                found |= {h: one for h, one in answers.items() if not isinstance(one, FAILURES)}
                is_silent = all(map(_is_silence, answers.values()))
                silent = silent + len(some) if is_silent else 0
                if silent >= max(size, SILENT_CALLS) or time.monotonic() > self.until:
                    break
        return found

    def _try(self, handle: str) -> Report | CsiError | DriverAway | None:
        try:
            return self.one(handle)
        except FAILURES as error:
            _log.warning("Check controller volume health error", volume=handle, err=error)
            return error

    def _call(self, method: str, **fields: str) -> Any:
        self._work.lease.check()
        request, answer = _MESSAGES[method]
        seconds = self._settings.timeout_seconds
        name = f"Controller/{method}"
        return self._work.call(name, request(**fields), answer, timeout_seconds=seconds)

    @contextmanager
    def _probe(self, method: str) -> Iterator[None]:
        """Count and time one probe; a list is one probe, whatever its pages (VH-050)."""
        metrics, driver = self._work.context.metrics, self._work.driver.name
        started, result = time.monotonic(), "error"
        try:
            yield
            result = "success"
        finally:
            metrics.health_probes.labels(driver, method, result).inc()
            seconds = time.monotonic() - started
            metrics.health_probe_seconds.labels(driver, method).observe(seconds)


def _is_silence(answer: Report | CsiError | DriverAway | None) -> bool:
    is_silent = isinstance(answer, CsiError) and answer.code in _SILENT
    return is_silent or isinstance(answer, DriverAway)


def _condition(volume: Any) -> Report | None:
    status = volume.status
    told = status.HasField("volume_condition")
    return report_of_condition(status.volume_condition) if told else None
