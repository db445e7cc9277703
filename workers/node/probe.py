"""Probes the driver over a new connection; concurrent callers share one Probe call."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from csi_client.client import CsiClient
from csi_client.errors import CsiError

if TYPE_CHECKING:
    from collections.abc import Callable

    Observer = Callable[[str, str, float], None]

HEALTHY: Final = ""
NOT_READY: Final = "driver responded but is not ready"
_LOOK_SECONDS: Final = 0.05


def _nobody(_method: str, _code: str, _seconds: float) -> None:
    """Do nothing; the default observer of calls."""


class Flight:
    """One Probe call in progress.

    Attributes:
        done: set when the result is available.
        result: "" for a healthy driver, otherwise the problem.
        was_connected: True if a connection to the driver was established.
    """

    def __init__(self, address: str, timeout_seconds: float, observer: Observer) -> None:
        self.done = threading.Event()
        self.result = ""
        self.was_connected = False
        self.ended_at = 0.0
        self.passengers = 1
        self._timeout = timeout_seconds
        self._client = CsiClient(address, timeout_seconds=timeout_seconds, observer=observer)

    def run(self) -> None:
        """Connect and probe, without raising an exception."""
        deadline = time.monotonic() + self._timeout
        try:
            self.was_connected = self._client.wait_connected(self._timeout)
            if not self.was_connected:
                self.result = "context deadline exceeded: no connection to the driver"
            else:
                left = max(0.001, deadline - time.monotonic())
                self.result = HEALTHY if self._client.probe(timeout_seconds=left) else NOT_READY
        except CsiError as error:
            self.result = str(error)
        except Exception as error:  # noqa: BLE001 - our own defects count as unhealthy too
            self.result = f"{type(error).__name__}: {error}"
        finally:
            self._client.close()
            self.ended_at = time.monotonic()
            self.done.set()

    def cancel(self) -> None:
        """Cancel the call because no caller is waiting for it any longer."""
        self._client.close()


class Prober:
    """Probes one driver.

    Args:
        address: the driver's socket.
        timeout_seconds: the timeout for the connection and the Probe together.
        min_interval_seconds: a result younger than this is reused.
        observer: called after each call with the method, the gRPC status and the duration in
            seconds.
    """

    def __init__(
        self,
        address: str,
        timeout_seconds: float,
        *,
        min_interval_seconds: float = 0.0,
        observer: Observer = _nobody,
    ) -> None:
        self._address = address
        self._timeout = timeout_seconds
        self._min_interval = min_interval_seconds
        self.observer = observer
        self._lock = threading.Lock()
        self._flight: Flight | None = None
        self._last: Flight | None = None

    def probe(self, is_gone: Callable[[], bool] = lambda: False) -> Flight:
        """Join the Probe in progress, or start one, and wait until it ends (LPD-006).

        `is_gone` returns True once this caller's client has disconnected. The last caller whose
        client disconnects cancels the Probe.
        """
        flight = self._board()
        while not flight.done.wait(_LOOK_SECONDS):
            if is_gone():
                self._leave(flight)
                break
        return flight

    def _board(self) -> Flight:
        with self._lock:
            last = self._last
            if last is not None and time.monotonic() - last.ended_at < self._min_interval:
                return last
            if self._flight is not None and not self._flight.done.is_set():
                self._flight.passengers += 1
                return self._flight
            self._flight = Flight(self._address, self._timeout, self.observer)
            threading.Thread(target=self._fly, args=(self._flight,), daemon=True).start()
            return self._flight

    def _fly(self, flight: Flight) -> None:
        flight.run()
        with self._lock:
            self._last = flight

    def _leave(self, flight: Flight) -> None:
        with self._lock:
            flight.passengers -= 1
            if flight.passengers > 0 or flight.done.is_set():
                return
            self._flight = None
        flight.cancel()
