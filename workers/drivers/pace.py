"""How much does the driver take? Its rate is kept, and its word that it is too much is believed.

No answer ends or holds back other calls: what fails has its own back-off, and another storage of
the same driver may work. Only two answers mean more than their own call:

- the connection is gone: the key waits (`DriverAway`), nothing is counted;
- words of throttling: the lane gets half. Not from Aborted, CSI's word for "this volume has a call
  pending"; ResourceExhausted without such words says that one place is full.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from csi_client.client import CsiClient
from csi_client.errors import (
    ABORTED,
    CANCELLED,
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
    from typing import TypeVar

    from google.protobuf.message import Message

    _Answer = TypeVar("_Answer", bound=Message)

_log = get_logger(__name__)

_TOO_MUCH: Final = re.compile(
    r"throttl|too many requests|request ?limit ?exceeded|rate (limit )?exceeded|slow ?down",
    re.IGNORECASE,
)


class LanePort(Protocol):
    """The part of `workers.queue.links.Links` that a call needs."""

    def throttle(self, lane: str) -> int:
        """Halve a lane."""

    def pace(self, lane: str) -> float:
        """Seconds to wait before a call."""


class Pace:
    """Keeps none: for drivers without a socket, and for tests.

    Attributes:
        paced: operations (`create`, ...) with a rate; their calls take turns over all workers.
    """

    paced: frozenset[str] = frozenset()

    def attach(self, queue_name: str) -> None:
        """The driver's queue name is known now."""

    def wait_turn(self, operation: str) -> None:
        """Before each call: keep the rate."""

    def failed(self, operation: str, error: CsiError) -> None:
        """A call of an operation (`create`, `delete`, ...) ended with an error."""


class SharedPace(Pace):
    """One pace of all workers; costs nothing where no rate is set."""

    def __init__(self, lanes: LanePort) -> None:
        self._lanes = lanes
        self._queue_name = ""

    def attach(self, queue_name: str) -> None:
        """The driver's queue name is known now."""
        self._queue_name = queue_name

    def wait_turn(self, operation: str) -> None:
        """Admission keeps the rate on the whole; here each call gets its exact time.

        Without Redis the call goes on: admission stands still then, so there are few.
        """
        if operation in self.paced and (lane := self._lane(operation)):
            try:
                seconds = self._lanes.pace(lane)
            except QueueUnavailable as error:
                _log.warning("rate not asked", driver=self._queue_name, err=error)
            else:
                time.sleep(seconds)

    def failed(self, operation: str, error: CsiError) -> None:
        """Halve the lane if the driver says that it is too much."""
        # Not in the text of Aborted: it names volumes and claims, and people name them freely.
        if error.code == ABORTED or error.from_transport or not _TOO_MUCH.search(error.details):
            return
        if lane := self._lane(operation):
            try:
                self._lanes.throttle(lane)
            except QueueUnavailable as unavailable:
                _log.warning("lane not lowered", driver=self._queue_name, err=unavailable)

    def _lane(self, operation: str) -> str:
        kind = catalogue.lanes().get(operation)
        return lane_name(kind, self._queue_name) if kind and self._queue_name else ""


class WatchedClient(CsiClient):
    """A client whose calls keep `pace`, all that work on volumes and snapshots.

    They raise DriverAway in place of a CsiError when the connection is gone. The call may have
    arrived before, so whoever creates must remember it as going on in the background.
    """

    def __init__(self, address: str, pace: Pace, **options: Any) -> None:
        super().__init__(address, **options)
        self.pace = pace

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
            self.pace.wait_turn(operation)
            lease = CURRENT.get()
            if lease is not None:
                lease.check()  # the turn may have taken long
                if lease.permit is not None:
                    options["is_allowed"] = lease.permit
            try:
                return super()._call(method, request, answer_type, timeout_seconds, **options)
            except CsiError as error:
                if error.code == CANCELLED and lease is not None and not lease.is_permitted():
                    raise LeaseLost(f"{method} was cancelled: others may work now") from None
                if self._is_away(error):
                    raise DriverAway(
                        f"driver at {self.address} is not connected: {error}"
                    ) from None
                self.pace.failed(operation, error)
                raise

    def _is_away(self, error: CsiError) -> bool:
        """The connection broke under the call, there was none, or one side was replaced."""
        if error.code not in {None, CANCELLED, UNAVAILABLE}:
            return False
        return error.from_transport or not self.is_connected
