"""csi-fleet and a process that follows client-go's election: their calls never overlap (COR-6).

    HANDOVERS=50 pytest tests/chaos/test_two_sides.py -s

The processes, the API server and Redis are real. The working side loses its Lease in one of many
ways; the driver's journal shows whose CreateVolume ran when.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter, deque
from pathlib import Path

import pytest

from tests.support.chaos import System
from tests.support.csi_driver import DriverCall
from tests.support.fleet import Scene, leader_flags, program
from tests.support.proxy import Proxy, kubeconfig_through
from tests.support.waiting import wait_until
from workers.engine.leasename import lease_name

HANDOVERS = int(os.environ.get("HANDOVERS", "8"))
SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
DURATION, DEADLINE, RETRY = 3.0, 2.0, 0.5
SECONDS = 120
GO = "go-sidecar"
# The driver aborts the call when the caller is gone, like one that respects its context.
SLOW = {"method": "CreateVolume", "delay_seconds": [0.05, 0.8], "gives_up": True}


def side_of(call: DriverCall) -> str:
    """Return which side made the call, by the volume's name."""
    return "go" if call.request["name"].startswith("go-") else "ours"


class TwoSides:
    """Two csi-fleet workers and a Go sidecar for one driver.

    Each process has its own proxy to the API server.
    """

    def __init__(self, system: System, plane, scene: Scene, seed: int) -> None:
        self.system, self.scene, self.random = system, scene, random.Random(seed)
        self.storage_class = scene.storage_class(system.driver.name)
        self.lease = lease_name(system.driver.name)
        self._kubeconfig = plane.kubeconfig
        self.proxies: dict[str, Proxy] = {}
        self.claims = 0
        self.seen = Counter()
        self.last_faults: deque[str] = deque(maxlen=8)

    def start(self) -> None:
        redis_flag = f"--redis-url={self.system.redis.url}"
        for name in ("worker-0", "worker-1"):
            self.system.add(
                name,
                [*program(), "worker"],
                [
                    f"--kubeconfig={self.way(name)}",
                    redis_flag,
                    f"--csi-address={self.system.driver.address}",
                    *leader_flags("default", DURATION, DEADLINE, RETRY),
                    "--kube-api-qps=1000",
                    "--kube-api-burst=1000",
                    "--retry-interval-max=2s",
                ],
            )
        options = {
            "kubeconfig": self.way(GO),
            "csi-address": self.system.driver.address,
            "lease": self.lease,
            "namespace": "default",
            "lease-duration": DURATION,
            "renew-deadline": DEADLINE,
            "retry-period": RETRY,
        }
        command = [sys.executable, "-m", "tests.support.go_sidecar"]
        self.system.add(GO, command, [f"--{name}={value}" for name, value in options.items()])
        self.system.parts[GO].command.pop()  # it has no flag --state-dir
        for name in ("worker-0", "worker-1"):
            self.system.parts[name].start()
        self.system.parts[GO].wanted = False
        self.wait_for("ours")
        self.system.parts[GO].wanted = True

    def way(self, name: str) -> Path:
        path = self.system.directory / f"{name}.kubeconfig"
        self.proxies[name] = kubeconfig_through(self._kubeconfig, path)
        return path

    def stop(self) -> None:
        for proxy in self.proxies.values():
            proxy.stop()

    # The side that works.

    def created(self) -> list[tuple[str, float, float | None]]:
        """Return side, begin and end of every CreateVolume."""
        return [
            (side_of(call), call.started_at, call.ended_at)
            for call in self.system.driver.calls("CreateVolume")
        ]

    def side(self) -> str:
        """Return the side of the newest call."""
        return self.created()[-1][0]

    def wait_for(self, side: str) -> None:
        """Wait until that side makes a call. csi-fleet always has claims to work on."""
        since = time.time()

        def calls() -> bool:
            self.feed()
            return any(who == side and begin > since for who, begin, _ in self.created()[-20:])

        wait_until(calls, SECONDS, f"{side} work", interval_seconds=0.1)

    def waiting(self) -> list[str]:
        """Return the names of claims that are not bound."""
        claims = self.scene.claims().items()
        return [name for name, one in claims if one["status"].get("phase") != "Bound"]

    def feed(self) -> None:
        """Create claims until four are waiting."""
        for _ in range(4 - len(self.waiting())):
            self.claims += 1
            self.scene.claim(f"c{self.claims}", self.storage_class)

    # Taking the Lease away.

    def hand_over(self) -> None:
        side = self.side()
        kinds = OURS if side == "ours" else THEIRS
        name = self.random.choice(sorted(kinds))
        self.seen[name] += 1
        self.last_faults.append(f"{time.time():.1f} {name}")
        names = ["worker-0", "worker-1"] if side == "ours" else [GO]
        kinds[name](self, names)
        for one in names:
            self.system.parts[one].wanted = False
        self.wait_for("go" if side == "ours" else "ours")
        for one in names:
            self.proxies[one].heal()
            self.system.parts[one].wanted = True
        if self.random.random() < 0.3:
            self.system.flush_redis()
            self.seen["redis flushed"] += 1
            self.last_faults.append(f"{time.time():.1f} redis flushed")

    def stopped(self, names: list[str]) -> None:
        """Send SIGTERM to the processes in order."""
        for name in names:
            self.system.parts[name].wanted = False
            process = self.system.parts[name].process
            if process is not None:
                process.signal(15)

    def stopped_and_flushed(self, names: list[str]) -> None:
        """Empty Redis while the holder stops, so that Redis does not know who else works."""
        self.system.flush_redis()
        self.stopped(names)

    def killed(self, names: list[str]) -> None:
        for name in names:
            self.system.parts[name].wanted = False
            self.system.kill(name)

    def one_after_the_other(self, names: list[str]) -> None:
        """Kill one of the processes, wait until another continues, then kill that one too."""
        first, *rest = self.random.sample(names, len(names))
        self.killed([first])
        if rest:
            self.wait_for("ours")
        self.killed(rest)

    def swallowed(self, names: list[str]) -> None:
        """Let the requests of the processes hang while the processes live."""
        for name in names:
            self.proxies[name].swallow(SECONDS)

    def held(self, names: list[str]) -> None:
        """Delay renewals until the other side works."""
        for name in names:
            self.proxies[name].hold(SECONDS)

    def overlaps(self) -> list[tuple[object, ...]]:
        """Return calls of csi-fleet during which a call of the other side ran."""
        calls = self.created()
        found = []
        for side, begin, end in calls:
            for other, other_begin, other_end in calls:
                if side == "ours" and other == "go":
                    last = min(end or time.time(), other_end or time.time())
                    if max(begin, other_begin) < last:
                        found.append((begin, end, other_begin, other_end))
        return found


OURS = {
    "ours stopped": TwoSides.stopped,
    "ours stopped, redis flushed": TwoSides.stopped_and_flushed,
    "ours killed": TwoSides.killed,
    "ours killed one by one": TwoSides.one_after_the_other,
    "ours cut off": TwoSides.swallowed,
    "ours held": TwoSides.held,
}
THEIRS = {
    "go stopped": TwoSides.stopped,
    "go killed": TwoSides.killed,
    "go cut off": TwoSides.swallowed,
    "go held": TwoSides.held,
}


@pytest.mark.timeout(1800)
def test_create_volume_calls_of_both_sides_never_overlap(own_plane, redis_binary, tmp_path, capsys):
    """The Lease changes hands after stops, crashes, hung renewals and Redis losses (issue 15)."""
    directory = Path(os.environ.get("CHAOS_KEEP", tmp_path)) / f"sides-{SEED}"
    with System(directory, own_plane, redis_binary, workers=0, watchers=1) as system:
        system.driver.set_rules(SLOW)
        scene = Scene(system.api)
        sides = TwoSides(system, own_plane, scene, SEED)
        try:
            sides.start()
            for _ in range(HANDOVERS):
                sides.hand_over()
                assert sides.overlaps() == []
            calls = Counter(side for side, _, _ in sides.created())
            with capsys.disabled():
                print(f"\nseed {SEED}: {HANDOVERS} hand-overs", dict(sides.seen), dict(calls))
            assert min(calls["ours"], calls["go"]) > HANDOVERS / 2
        except BaseException:
            print(f"seed {SEED}: {dict(sides.seen)}", *sides.overlaps(), sep="\n")
            print(*sides.last_faults, *sides.waiting(), *system.queue_state(), sep="\n")
            system.show_threads()
            raise
        finally:
            sides.stop()
            scene.clean_up()
