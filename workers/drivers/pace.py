"""Limits the rate of a driver's calls, and runs fewer at once if the driver reports throttling.

A failed call does not delay other calls: only its own key is retried with back-off, because other
parts of the driver's storage system may be working. Only two results affect more than their own
call:

- The connection is lost: the key waits (`DriverAway`), and no failure is counted.
- The error message reports throttling: the limit of the queue is halved.

Aborted is ignored, because in CSI it means "a call for this volume is pending". ResourceExhausted
without a message about throttling means that one storage pool is full.
"""

from __future__ import annotations

import re
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

from csi_client.client import CsiClient
from csi_client.errors import (
    ABORTED,
    CANCELLED,
    UNAVAILABLE,
    CsiError,
)
from workers.controllers import catalogue
from workers.drivers.operations import OPERATIONS
from workers.errors import DriverAway, LeaseLost, QueueUnavailable
from workers.observability.logging import get_logger
from workers.queue.keys import lane_name
from workers.queue.leases import CURRENT

if TYPE_CHECKING:
    from typing import TypeVar

    from google.protobuf.message import Message

    from workers.drivers.replica import Replica

    _Answer = TypeVar("_Answer", bound=Message)

_log = get_logger(__name__)

_TOO_MUCH: Final = re.compile(
    r"throttl|too many requests|request ?limit ?exceeded|rate (limit )?exceeded|slow ?down",
    re.IGNORECASE,
)


class LanePort(Protocol):
    """The methods of `workers.queue.links.Links` that a call needs."""

    def throttle(self, lane: str) -> int:
        """Halve the limit of a queue."""

    def pace(self, lane: str) -> float:
        """Return the seconds to wait before the next call."""


class Pace:
    """A pace without limits, for drivers without a socket and for tests.

    Attributes:
        paced: the operations (`create`, ...) that have a rate limit; the limit applies to all
            workers together.
    """

    paced: frozenset[str] = frozenset()

    def attach(self, queue_name: str) -> None:
        """Set the driver's queue name once it is known."""

    def wait_turn(self, operation: str) -> None:
        """Block for as long as the rate limit requires; called before each call."""

    def failed(self, operation: str, error: CsiError) -> None:
        """Process the error from a failed call of an operation (`create`, `delete`, ...)."""


class SharedPace(Pace):
    """A pace that all workers share through Redis; it costs nothing if no rate is set."""

    def __init__(self, lanes: LanePort) -> None:
        self._lanes = lanes
        self._queue_name = ""

    def attach(self, queue_name: str) -> None:
        """Set the driver's queue name once it is known."""
        self._queue_name = queue_name

    def wait_turn(self, operation: str) -> None:
        """Sleep until the call is due.

        Admission enforces only the average rate; this method enforces the exact one. If Redis is
        unavailable, the call is made at once, because no keys are admitted meanwhile and there are
        few calls.
        """
        if operation in self.paced and (lane := self._lane(operation)):
            try:
                seconds = self._lanes.pace(lane)
            except QueueUnavailable as error:
                _log.warning(
                    "could not read the rate of the driver", driver=self._queue_name, err=error
                )
            else:
                time.sleep(seconds)

    def failed(self, operation: str, error: CsiError) -> None:
        """Halve the limit of the queue if the error reports throttling."""
        # Aborted is ignored: its message contains volume names, and a name may match by chance.
        if error.code == ABORTED or error.from_transport or not _TOO_MUCH.search(error.details):
            return
        if lane := self._lane(operation):
            try:
                self._lanes.throttle(lane)
            except QueueUnavailable as unavailable:
                _log.warning(
                    "could not lower the limit of the driver",
                    driver=self._queue_name,
                    err=unavailable,
                )

    def _lane(self, operation: str) -> str:
        kind = catalogue.lanes().get(operation)
        return lane_name(kind, self._queue_name) if kind and self._queue_name else ""


class WatchedClient(CsiClient):
    """A client that obeys the limits of `pace` in all calls about volumes and snapshots.

    These calls raise DriverAway instead of a CsiError when the connection is lost. The driver may
    have received the call, so callers that create objects must treat the call as still running.

    Attributes:
        replica: the replica to call; None if the driver has no replicas, or if any of them may be
            called.
    """

    def __init__(
        self, address: str, pace: Pace, *, replica: Replica | None = None, **options: Any
    ) -> None:
        super().__init__(address, **options)
        self.pace = pace
        self.replica = replica

    def _call(
        self,
        method: str,
        request: Message,
        answer_type: type[_Answer],
        timeout_seconds: float | None,
        **options: Any,
    ) -> _Answer:
        """Make one call, after the pace and the lease allow it; every call passes through here."""
        operation = OPERATIONS.get(method)
        if operation is None:
            return super()._call(method, request, answer_type, timeout_seconds, **options)
        self.pace.wait_turn(operation)
        lease = CURRENT.get()
        if lease is not None:
            lease.check()  # the wait may have been long
            if lease.permit is not None:
                options["is_allowed"] = lease.permit
        seconds = self.deadline_seconds(method, timeout_seconds)
        try:
            with self.replica.call(seconds) if self.replica else nullcontext():
                return super()._call(method, request, answer_type, timeout_seconds, **options)
        except CsiError as error:
            if error.code == CANCELLED and lease is not None and not lease.is_permitted():
                raise LeaseLost(f"{method} was cancelled: others may work now") from None
            if self._is_away(error):
                raise DriverAway(f"driver at {self.address} is not connected: {error}") from None
            self.pace.failed(operation, error)
            raise

    def _is_away(self, error: CsiError) -> bool:
        """Return True if the connection broke, did not exist, or was replaced during the call."""
        if error.code not in {None, CANCELLED, UNAVAILABLE}:
            return False
        return error.from_transport or not self.is_connected
