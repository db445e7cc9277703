"""Faults that can happen to any system of processes, drawn by name from one seed.

A chaos test makes a subclass, which defines what users do meanwhile and may add its own kinds of
faults (`fault_kinds`). `Faults.__init__` checks at the start that the system has what the faults
need, so that no schedule ends half-way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tests.support.chaos import System
from tests.support.kube_api import KubeApiError
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

# For workers: leases that are short enough to be lost during a run.
ELECTION = (
    "--leader-election",
    "--leader-election-lease-duration=6s",
    "--leader-election-renew-deadline=4s",
    "--leader-election-retry-period=1s",
)
SIDE_BY_SIDE = {"ControllerExpandVolume", "ControllerModifyVolume"}  # MR-011
LOSES_DATA = {"redis flushed", "redis restarted empty", "lagging replica promoted"}
LOSES_LEASES = {
    *LOSES_DATA,
    *("redis restarted", "worker frozen 8 s", "worker killed"),
    *("all workers killed", "worker frozen 3 s"),
    *("redis connection swallows", "redis commands late"),
}


class Faults:
    """The faults for a system whose connections lead through proxies."""

    def __init__(self, system: System, seed: int) -> None:
        if not (system.is_proxied and system.appendonly):
            message = "faults cut the ways to API server and Redis, and take its data back: System("
            message += "is_proxied=True, appendonly=True)"
            raise ValueError(message)
        self.system, self.random = system, random.Random(seed)

    def insist(self, action: Callable[[], Any]) -> Any:
        """Repeat a request until the API server accepts it, as a user would; 409 and 404 mean
        that an earlier try arrived."""
        answers: list[Any] = []

        def done() -> bool:
            try:
                answers.append(action())
            except KubeApiError as error:
                if error.status not in {404, 409}:
                    raise
                answers.append(None)
            return True

        wait_until(done, 60, "the API server takes the request", interval_seconds=0.2)
        return answers[-1]

    def any_worker(self) -> str:
        """Return a random worker, drawn from the seed."""
        return self.random.choice(self.system.workers_())

    def swallow(self, ways: Mapping[str, Proxy], seconds: float = 10) -> None:
        """Let one worker's connections go dead without closing them."""
        ways[self.any_worker()].swallow(seconds)

    def late_commands(self) -> None:
        """Delay what one worker sends to Redis until just before or just after the end of its
        lease."""
        self.system.redis_ways[self.any_worker()].hold(self.random.uniform(1, 6))

    def late_watcher(self) -> None:
        """Delay all events of one of the two watchers."""
        name = self.random.choice(self.system.watchers_())
        self.system.api_ways[name].hold(self.random.uniform(1, 5), answers=True)

    fault_kinds: ClassVar[dict[str, Callable[[Any], object]]] = {
        "api server restarted": lambda self: self.system.restart_api_server(),
        "beat killed": lambda self: self.system.kill("beat"),
        "connections cut": lambda self: self.system.cut_connections(),
        "driver restarted": lambda self: self.system.restart_driver(),
        "redis flushed": lambda self: self.system.flush_redis(),
        "redis restarted empty": lambda self: self.system.restart_redis(is_empty=True),
        "lagging replica promoted": lambda self: self.system.lose_writes(
            self.random.uniform(0.2, 1.5)
        ),
        "redis restarted": lambda self: self.system.restart_redis(),
        "watchers killed": lambda self: [self.system.kill(w) for w in self.system.watchers_()],
        "worker frozen 3 s": lambda self: self.system.freeze(self.any_worker(), 3),
        "worker frozen 8 s": lambda self: self.system.freeze(self.any_worker(), 8),
        "worker killed": lambda self: self.system.kill(self.any_worker()),
        "all workers killed": lambda self: [self.system.kill(w) for w in self.system.workers_()],
        "worker without api server": lambda self: self.swallow(self.system.api_ways),
        "lease request hangs": lambda self: self.system.api_ways[self.any_worker()].hold(4),
        "redis connection swallows": lambda self: self.swallow(self.system.redis_ways),
        "redis commands late": lambda self: self.late_commands(),
        "one watcher late": lambda self: self.late_watcher(),
    }


def overlaps_without_fault(system: System, lease_ends: list[float]) -> list[str]:
    """Return the concurrent calls for one volume during which no lease was lost: these break
    single flight."""
    calls = {call.call: call for call in system.driver.calls()}
    found = []
    for call in calls.values():
        for overlap in call.overlaps:
            other = calls[overlap["call"]]
            if not overlap["waited_for"] or {other.method, call.method} == SIDE_BY_SIDE:
                continue
            # A frozen process keeps its call open; its lease ends up to 8 + 4 s after the fault.
            if any(other.started_at - 12 <= at <= call.started_at for at in lease_ends):
                continue
            found.append(f"{other.method} {other.started_at} / {call.method} {call.started_at}")
    return found
