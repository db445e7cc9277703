"""Is the driver well, judged by its answers? What each failed call means for the calls to come.

- the connection is gone: the key waits (`DriverAway`), nothing is counted;
- Unavailable: counts for the breaker;
- no answer in time: counts only if Probe is not answered either, for a slow driver is not a dead
  one: it may need longer for each volume than the caller waits;
- words of throttling: the lane gets half;
- any other answer is an answer: the driver is well. So are Aborted, CSI's word for "this volume has
  a call pending", and ResourceExhausted, its word for "this place is full": both are about one
  volume or one place and slow nothing else down.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from csi_client.client import CsiClient
from csi_client.errors import (
    ABORTED,
    CANCELLED,
    DEADLINE_EXCEEDED,
    UNAVAILABLE,
    CsiError,
)
from workers.controllers import catalogue
from workers.cpuslots import waiting
from workers.drivers.operations import OPERATIONS
from workers.errors import DriverAway, LeaseLost, QueueUnavailable
from workers.observability.logging import get_logger
from workers.queue.keys import lane_name
from workers.queue.leases import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from google.protobuf.message import Message

    _Answer = TypeVar("_Answer", bound=Message)

_log = get_logger(__name__)

PROBE_SECONDS: Final = 5.0
"""As long as the handshake waits: a driver that is busy may need a while for this too."""
_TOO_MUCH: Final = re.compile(
    r"throttl|too many requests|request ?limit ?exceeded|rate (limit )?exceeded|slow ?down",
    re.IGNORECASE,
)


class BreakerPort(Protocol):
    """The part of `workers.queue.breakers.Breakers` that a call's end needs."""

    def failed(self, driver: str, reason: str) -> str:
        """Count a call that was not answered."""

    def succeeded(self, driver: str) -> str:
        """A call was answered."""

    def throttle(self, lane: str) -> int:
        """Halve a lane."""

    def pace(self, lane: str) -> float:
        """Seconds to wait before a call."""


class Health:
    """Tells nobody: for drivers without a socket, and for tests.

    Attributes:
        paced: operations (`create`, ...) with a rate; their calls take turns over all workers.
    """

    paced: frozenset[str] = frozenset()

    def attach(self, queue_name: str) -> None:
        """The driver's queue name is known now."""

    def wait_turn(self, operation: str) -> None:
        """Before each call: keep the rate."""

    def answered(self) -> None:
        """The driver did answer."""

    def failed(self, operation: str, error: CsiError, is_alive: Callable[[], bool]) -> None:
        """A call of an operation (`create`, `delete`, ...) ended with an error.

        `is_alive` asks the driver by Probe; it may take seconds.
        """


class SharedHealth(Health):
    """Tells the breaker of all workers; costs nothing while all is well.

    Attributes:
        is_suspect: somebody saw a failure, so the next answer is news.
    """

    def __init__(self, breakers: BreakerPort) -> None:
        self._breakers = breakers
        self._queue_name = ""
        self.is_suspect = False

    def attach(self, queue_name: str) -> None:
        """The driver's queue name is known now."""
        self._queue_name = queue_name

    def wait_turn(self, operation: str) -> None:
        """Admission keeps the rate on the whole; here each call gets its exact time.

        Without Redis the call goes on: admission stands still then, so there are few.
        """
        if operation in self.paced and operation in catalogue.lanes() and self._queue_name:
            try:
                seconds = self._breakers.pace(
                    lane_name(catalogue.lanes()[operation], self._queue_name)
                )
            except QueueUnavailable as error:
                _log.warning("rate not asked", driver=self._queue_name, err=error)
            else:
                time.sleep(seconds)

    def answered(self) -> None:
        """The driver did answer."""
        if self.is_suspect:
            self.is_suspect = False
            self._tell(lambda: self._breakers.succeeded(self._queue_name))

    def failed(self, operation: str, error: CsiError, is_alive: Callable[[], bool]) -> None:
        """Sort the error: breaker, half of the lane, or a plain answer."""
        if error.code == UNAVAILABLE:
            self._count(str(error))
        elif error.code == DEADLINE_EXCEEDED:
            if is_alive():
                self.answered()
            else:
                self._count(f"no answer to {operation} in time, nor to Probe")
        elif error.code != CANCELLED and not error.from_transport:
            # Not in the text of Aborted: it names volumes and claims, and people name them freely.
            if error.code != ABORTED and _TOO_MUCH.search(error.details):
                self._halve(operation)
            self.answered()

    def _halve(self, operation: str) -> None:
        if operation in catalogue.lanes():
            lane = lane_name(catalogue.lanes()[operation], self._queue_name)
            self._tell(lambda: self._breakers.throttle(lane))

    def _count(self, reason: str) -> None:
        self.is_suspect = True
        self._tell(lambda: self._breakers.failed(self._queue_name, reason))

    def _tell(self, event: Callable[[], object]) -> None:
        if not self._queue_name:
            return
        try:
            event()
        except QueueUnavailable as error:
            _log.warning("breaker not told", driver=self._queue_name, err=error)


class WatchedClient(CsiClient):
    """A client whose calls are watched by `health`, all that work on volumes and snapshots.

    They raise DriverAway in place of a CsiError when the connection is gone. The call may have
    arrived before, so whoever creates must remember it as going on in the background.
    """

    def __init__(self, address: str, health: Health, **options: Any) -> None:
        super().__init__(address, **options)
        self.health = health
        self._probing = threading.Lock()
        self._probed_at = float("-inf")
        self._is_alive = False

    def _call(
        self,
        method: str,
        request: Message,
        answer_type: type[_Answer],
        timeout_seconds: float | None,
        **options: Any,
    ) -> _Answer:
        """As the base's; the one door for every call, so that none escapes."""
        with waiting():
            operation = OPERATIONS.get(method)
            if operation is None:
                return super()._call(method, request, answer_type, timeout_seconds, **options)
            self.health.wait_turn(operation)
            lease = CURRENT.get()
            if lease is not None:
                lease.check()  # the turn may have taken long
                if lease.permit is not None:
                    options["is_allowed"] = lease.permit
            try:
                answer = super()._call(method, request, answer_type, timeout_seconds, **options)
            except CsiError as error:
                if error.code == CANCELLED and lease is not None and not lease.is_permitted():
                    raise LeaseLost(f"{method} was cancelled: others may work now") from None
                if self._is_away(error):
                    raise DriverAway(
                        f"driver at {self.address} is not connected: {error}"
                    ) from None
                self.health.failed(operation, error, self.answers_probe)
                raise
            self.health.answered()
            return answer

    def answers_probe(self) -> bool:
        """Ask whether the driver is well; many that ask at once share one Probe.

        A driver that hangs holds each of their threads for one or two of its time-outs.
        """
        asked_at = time.monotonic()
        with self._probing:
            if self._probed_at < asked_at:
                self._probed_at = time.monotonic()
                try:
                    self._is_alive = self.probe(timeout_seconds=PROBE_SECONDS)
                except CsiError:
                    self._is_alive = False
            return self._is_alive

    def _is_away(self, error: CsiError) -> bool:
        """The connection broke under the call, there was none, or one side was replaced."""
        if error.code not in {None, CANCELLED, UNAVAILABLE}:
            return False
        return error.from_transport or not self.is_connected
