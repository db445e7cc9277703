"""Is the driver well, judged by its answers? What each failed call means for the calls to come.

- the connection is gone: the key waits (`DriverAway`), nothing is counted;
- Unavailable, or no answer in time: counts for the breaker;
- "too much" (ResourceExhausted, Aborted, words of throttling): the lane gets half;
- any other answer is an answer: the driver is well.

A time-out of an attempt that is known to go on in the background is no news: polling a clone that
takes six hours must not stop the driver's other claims.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from csi_client.client import CsiClient
from csi_client.errors import (
    ABORTED,
    CANCELLED,
    DEADLINE_EXCEEDED,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    CsiError,
)
from workers.errors import DriverAway, QueueUnavailable
from workers.queue.keys import lane_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from csi_client import messages as csi

    _T = TypeVar("_T")

_log = logging.getLogger(__name__)

LANES: Final = {"create": "claims", "delete": "volumes", "capacity": "capacity"}
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

    def failed(self, operation: str, error: CsiError) -> None:
        """A call of an operation (`create`, `delete`, `capacity`) ended with an error."""

    def timed_out(self, operation: str) -> None:
        """No answer in time, where one was to be expected."""


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
        if operation in self.paced and self._queue_name:
            try:
                seconds = self._breakers.pace(lane_name(LANES[operation], self._queue_name))
            except QueueUnavailable as error:
                _log.warning("rate of %s not asked: %s", self._queue_name, error)
            else:
                time.sleep(seconds)

    def answered(self) -> None:
        """The driver did answer."""
        if self.is_suspect:
            self.is_suspect = False
            self._tell(lambda: self._breakers.succeeded(self._queue_name))

    def failed(self, operation: str, error: CsiError) -> None:
        """Sort the error: breaker, half of the lane, or a plain answer."""
        if error.code in {RESOURCE_EXHAUSTED, ABORTED} or _TOO_MUCH.search(error.details):
            if not error.from_transport:
                self._tell(
                    lambda: self._breakers.throttle(lane_name(LANES[operation], self._queue_name))
                )
                self.answered()
        elif error.code == UNAVAILABLE:
            self._count(str(error))
        elif error.code == DEADLINE_EXCEEDED:
            if operation != "create":  # of creations the attempt knows more
                self.timed_out(operation)
        elif error.code != CANCELLED and not error.from_transport:
            self.answered()

    def timed_out(self, operation: str) -> None:
        """No answer in time, where one was to be expected."""
        self._count(f"no answer to {operation} in time")

    def _count(self, reason: str) -> None:
        self.is_suspect = True
        self._tell(lambda: self._breakers.failed(self._queue_name, reason))

    def _tell(self, event: Callable[[], object]) -> None:
        if not self._queue_name:
            return
        try:
            event()
        except QueueUnavailable as error:
            _log.warning("breaker of %s not told: %s", self._queue_name, error)


class WatchedClient(CsiClient):
    """A client whose volume calls are watched by `health`.

    Volume calls raise DriverAway in place of a CsiError when the connection is gone. The call may
    have arrived before, so whoever creates must remember it as going on in the background.
    """

    def __init__(self, address: str, health: Health, **options: Any) -> None:
        super().__init__(address, **options)
        self.health = health

    def create_volume(
        self, request: csi.CreateVolumeRequest, **options: Any
    ) -> csi.CreateVolumeResponse:
        """As the base's."""
        return self._watched(
            "create", lambda: super(WatchedClient, self).create_volume(request, **options)
        )

    def delete_volume(self, volume_id: str, secrets: Mapping[str, str], **options: Any) -> None:
        """As the base's."""
        self._watched(
            "delete",
            lambda: super(WatchedClient, self).delete_volume(volume_id, secrets, **options),
        )

    def get_capacity(
        self, request: csi.GetCapacityRequest, **options: Any
    ) -> csi.GetCapacityResponse:
        """As the base's."""
        return self._watched(
            "capacity", lambda: super(WatchedClient, self).get_capacity(request, **options)
        )

    def _watched(self, operation: str, call: Callable[[], _T]) -> _T:
        self.health.wait_turn(operation)
        try:
            answer = call()
        except CsiError as error:
            if self._is_away(error):
                raise DriverAway(f"driver at {self.address} is not connected: {error}") from None
            self.health.failed(operation, error)
            raise
        self.health.answered()
        return answer

    def _is_away(self, error: CsiError) -> bool:
        """The connection broke under the call, there was none, or the client was replaced."""
        if error.code is None or error.code == CANCELLED:
            return not self.is_connected
        return error.code == UNAVAILABLE and (error.from_transport or not self.is_connected)
