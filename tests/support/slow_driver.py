"""A slow driver in the time of a simulation: how much does the breaker cost it?

Real queue, breaker and health on a real Redis whose clock is ours, so 300 s pass in a few. The
driver works `create_seconds` on each volume, whoever waits; a call waits `timeout_seconds` for it.
What is simulated is only the driver, the calls' time and the wake-ups of the fleet.

    python -m tests.support.slow_driver          # prints the table of issue 15
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import redis

from csi_client.errors import DEADLINE_EXCEEDED, UNAVAILABLE, CsiError
from tests.support.redis_server import RedisServer, find_redis_server
from workers.drivers.health import Health, SharedHealth
from workers.queue.breakers import Breakers
from workers.queue.keys import Key, claim_key
from workers.queue.kinds import DRIVER_KINDS
from workers.queue.leases import Lease
from workers.queue.locks import Lock
from workers.queue.workqueue import WorkQueue

PUMP_SECONDS = 0.2
JUDGE_SECONDS = 1.0
# How long a call is under way that finds its volume made, or the driver away.
SHORT_SECONDS = 0.005


@dataclass(frozen=True)
class Figures:
    """What came of one run: claims, those provisioned, seconds of each from add to end, sorted."""

    claims: int
    seconds: list[float]

    @property
    def done(self) -> int:
        return len(self.seconds)

    @property
    def worst(self) -> float:
        return self.seconds[-1]


@dataclass
class SlowDriver:
    """One run; `run` may be called once.

    Args:
        client: an empty database.
        claims_per_second: arrive steadily for `seconds`.
        away: from and to in seconds: it answers Unavailable, as one that is restarted.
        has_breaker: False measures what would be without.
    """

    client: redis.Redis
    claims_per_second: float
    seconds: float = 300.0
    create_seconds: float = 15.0
    timeout_seconds: float = 10.0
    away: tuple[float, float] = (0.0, 0.0)
    has_breaker: bool = True
    limit: int = 100
    now_ms: int = field(init=False, default=1_700_000_000_000)

    def __post_init__(self) -> None:
        self._start_ms = self.now_ms
        self._tickets: list[Key] = []
        self._numbers = count()
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._born: dict[str, int] = {}
        self._ready_ms: dict[str, float] = {}
        self._done: list[float] = []
        clock = lambda: self.now_ms  # noqa: E731 - read at each call
        self.queue = WorkQueue(
            self.client,
            publish=self._tickets.extend,
            clock=lambda: self.now_ms / 1000,
            now_ms=clock,
        )
        self.queue.register_process()
        for kind in DRIVER_KINDS:
            self.queue.set_limits(f"{kind}|d", self.limit)
        self.breakers = Breakers(self.client, publish=self._tickets.extend, now_ms=clock)
        self.health: Health = SharedHealth(self.breakers) if self.has_breaker else Health()
        self.health.attach("d")

    def run(self) -> Figures:
        """Until the time is over; what has not ended by then counts as not done."""
        for number in range(int(self.claims_per_second * self.seconds)):
            self._at(number / self.claims_per_second, self._claim, number)
        self._at(0, self._pump)
        self._at(0, self._judge)
        end_ms = self._start_ms + self.seconds * 1000
        while self._events and self._events[0][0] <= end_ms:
            due_ms, _, act, args = heapq.heappop(self._events)
            self.now_ms = due_ms
            act(*args)
            while self._tickets:
                self._take(self._tickets.pop(0))
        return Figures(len(self._born), sorted(self._done))

    @property
    def _elapsed(self) -> float:
        return (self.now_ms - self._start_ms) / 1000

    @property
    def _is_away(self) -> bool:
        return self.away[0] <= self._elapsed < self.away[1]

    def _at(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        due_ms = self._start_ms + round(seconds * 1000)
        heapq.heappush(self._events, (due_ms, next(self._numbers), act, args))

    def _claim(self, number: int) -> None:
        key = claim_key("d", "ns", f"c{number}", f"u{number}")
        self._born[key.text] = self.now_ms
        self.queue.add([key])

    def _pump(self) -> None:
        self.queue.heartbeat()
        self.queue.pump(period_seconds=0)
        self._at(self._elapsed + PUMP_SECONDS, self._pump)

    def _judge(self) -> None:
        """As workers.drivers.fleet does."""
        state = self.breakers.states().get("d")
        if isinstance(self.health, SharedHealth) and state is not None:
            self.health.is_suspect = True
            if state.state in {"open", "half"} and not self._is_away:
                self.breakers.half_open("d")
        self._at(self._elapsed + JUDGE_SECONDS, self._judge)

    def _take(self, key: Key) -> None:
        lease = self.queue.take(key, [Lock(f"pvc-{key.uid}")])
        if lease is None:
            return
        if self._is_away:
            gone = CsiError(UNAVAILABLE, "told to be unavailable")
            self._at(self._elapsed + SHORT_SECONDS, self._end, lease, gone)
            return
        ready = self._ready_ms.setdefault(key.text, self._elapsed + self.create_seconds)
        left = max(ready - self._elapsed, SHORT_SECONDS)
        late = CsiError(DEADLINE_EXCEEDED, "late") if left > self.timeout_seconds else None
        self._at(self._elapsed + min(left, self.timeout_seconds), self._end, lease, late)

    def _end(self, lease: Lease, error: CsiError | None) -> None:
        if error is None:
            self.health.answered()
            self._done.append((self.now_ms - self._born[lease.key.text]) / 1000)
            self.queue.done(lease)
        else:
            self.health.failed("create", error, lambda: not self._is_away)
            self.queue.fail(lease, base_seconds=1, cap_seconds=300)


def main() -> None:
    """Prints what issue 15 asks for, on a Redis of its own."""
    binary = find_redis_server()
    if binary is None:
        raise SystemExit("no redis-server")
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(binary, Path(folder)).start()
        client = redis.Redis.from_url(server.url)
        print("claims/s  restart  breaker  claims  done  median s  worst s")
        for rate in (1, 3):
            for away in ((0.0, 0.0), (100.0, 104.0)):
                for has_breaker in (False, True):
                    client.flushall()
                    one = SlowDriver(client, rate, away=away, has_breaker=has_breaker).run()
                    print(
                        f"{rate:8}  {away[1] > 0!s:7}  {'on' if has_breaker else 'off':7}  "
                        f"{one.claims:6}  {one.done:4}  {one.seconds[one.done // 2]:8.1f}  "
                        f"{one.worst:7.1f}"
                    )
        server.kill()


if __name__ == "__main__":
    main()
