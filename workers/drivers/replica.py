"""Makes all workers call the same replica of a driver (`replicas: one` in the drivers file).

The driver's host name resolves to the addresses of its replicas (a headless Service). Redis stores
the address of the replica to call (`chosen`, workers/queue/lua/link.lua). A worker that has reached
another replica gets that address and moves to it. While any worker is connected to the chosen
replica, no other replica is called. Once no worker is connected to it, the first worker to reach
another replica makes that replica the chosen one.

Two replicas never have calls for the same volume at the same time: the new replica is called only
after all calls to the old one have ended or their deadlines have passed. Each worker reports its
deadlines to Redis when it loses its connection. For a silent worker, Redis adds the longest timeout
to the time at which the worker's last report expires; a worker makes calls only while its own
report is valid (`admit`).
"""

from __future__ import annotations

import math
import socket
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from csi_client.errors import CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, CsiError
from workers.deadlines import MARGIN_SECONDS
from workers.errors import DriverAway
from workers.queue.leases import suspend_aware_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_UNANSWERED: Final = frozenset({None, CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE})


def addresses_of(host: str, port: int) -> list[str]:
    """Return a host's addresses, sorted; empty if the name cannot be resolved. This may block."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(one[4][0]) for one in found})


@dataclass(slots=True)
class Replica:
    """The replica that this process is connected to.

    Attributes:
        host: the name of the driver's host.
        port: the port of all replicas.
        address: the address of the replica; "" until one is chosen.
        chosen: the address that the other workers call, if Redis refused `address`; otherwise "".
        resolve: returns the addresses of a host.
        clock: returns the time in seconds of a local clock that keeps running while the machine is
            suspended.
    """

    host: str
    port: int
    address: str = ""
    chosen: str = ""
    resolve: Callable[[str, int], list[str]] = field(default_factory=lambda: addresses_of)
    clock: Callable[[], float] = suspend_aware_clock
    _admitted: str = ""
    _from: float = math.inf
    _until: float = -math.inf
    _ends: dict[int, float] = field(default_factory=dict)
    _unanswered: float = -math.inf
    _numbers: count[int] = field(default_factory=count)

    def admit(self, address: str, since: float, hold_seconds: float, ttl_seconds: float) -> bool:
        """Allow calls to the replica that this process asked Redis about.

        Return False if the process has moved to a different replica in the meantime. The request
        was sent at `since`, and Redis started both periods at some moment between then and now. So
        calls are allowed from `hold_seconds` after now until `ttl_seconds` after `since`.
        """
        self._admitted = address
        self._from, self._until = self.clock() + hold_seconds, since + ttl_seconds
        return self.address == address

    def renew(self, since: float, ttl_seconds: float) -> None:
        """Extend the time during which calls are allowed: Redis still counts us as connected."""
        if self._until > -math.inf:
            self._until = since + ttl_seconds

    def revoke(self) -> None:
        """Allow no calls until `admit` is called."""
        self._from, self._until = math.inf, -math.inf

    def open_seconds(self) -> float:
        """Return how long our calls to the replica may still take; 0 if there are none."""
        last = max(self._ends.copy().values(), default=-math.inf)
        return max(0.0, max(last, self._unanswered) - self.clock())

    @contextmanager
    def call(self, timeout_seconds: float) -> Iterator[None]:
        """Record a call as open while it runs.

        Raises:
            DriverAway: this process must not call the replica now; nothing was sent.
        """
        number, now = next(self._numbers), self.clock()
        # `seek` may change the address after Redis has replied and before `admit` is called.
        if not self._from <= now < self._until or self.address != self._admitted:
            raise DriverAway(f"no replica of {self.host} may be called at the moment")
        self._ends[number] = end = now + timeout_seconds + MARGIN_SECONDS
        try:
            yield
        except CsiError as error:
            if error.code in _UNANSWERED:
                self._unanswered = max(self._unanswered, end)
            raise
        finally:
            self._ends.pop(number, None)

    def next(self, *, is_connected: bool) -> str:
        """Return the address to move to; "" to stay. This resolves the host name and may block."""
        found = self.resolve(self.host, self.port)
        if not found:
            return ""
        if is_connected or not self.address:
            wanted = self.chosen if self.chosen in found else self.address or found[0]
        else:
            later = [one for one in found if one > self.address]
            wanted, self.chosen = (later or found)[0], ""
        return wanted if wanted != self.address else ""
