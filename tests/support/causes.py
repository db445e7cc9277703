"""Actions that make each alert fire in a `Monitored` world, and actions that end it.

An alert is given as a pair of its name and the role that it names ("" for none). The causes in
`TOGETHER` begin at the same time, each with its own driver; the causes in `ALONE` affect all
drivers.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.monitored import WATCHERS, WORKERS, Monitored
from tests.support.refusal import volumes_refused
from tests.support.waiting import wait_until

ROLES: Final = (
    *("steady", "slow", "paused", "hang", "flaps", "gone", "refused", "full"),
    *("stuck", "frozen", "left", "attach"),
)
LIMITS: Final = {"hang": 6}
SLOW_SECONDS: Final = 4.0
PATIENCE: Final = 300


class Actions:
    """Actions that break the world, and actions that repair it, by the steps of the runbook if
    possible."""

    def __init__(self, world: Monitored) -> None:
        self.world = world
        self.refusal = ExitStack()
        self.numbers = 0
        self.asked: dict[str, float] = {}
        self.stuck: list[str] = []
        self.broken: list[str] = []
        self.hopeless = ""

    def claim(self, role: str, count: int) -> list[str]:
        """Create `count` claims of a role; return the claims' names."""
        names = [f"{role}-{self.numbers + number}" for number in range(count)]
        self.numbers += count
        for name in names:
            self.asked[name] = time.time()
            self.world.scene.claim(name, self.world.classes[role])
        return names

    def bind(self, role: str, count: int) -> tuple[list[str], float]:
        """Create `count` claims and wait until they are Bound; return their names and the
        longest wait."""
        names = self.claim(role, count)
        return names, self.wait_bound(names)

    def wait_bound(self, names: list[str]) -> float:
        """Wait until the claims are Bound; return the longest observed wait in seconds."""
        waits: dict[str, float] = {}

        def all_bound() -> bool:
            claims = self.world.scene.claims()
            for name in names:
                if claims[name].get("status", {}).get("phase") == "Bound":
                    waits.setdefault(name, time.time() - self.asked[name])
            return len(waits) == len(names)

        wait_until(all_bound, PATIENCE, f"{names[0]} and others are Bound")
        return max(waits.values())

    def asked_first(self, role: str) -> float:
        """Return the time when the first claim of a role was created."""
        return min(at for name, at in self.asked.items() if name.startswith(f"{role}-"))

    def delete(self, names: list[str]) -> None:
        for name in names:
            self.world.scene.delete(name)

    def mode(self, role: str, **mode: Any) -> None:
        self.world.host.set_mode(self.world.driver(role), **mode)

    def have_counted(self, *series: tuple[str, str]) -> bool:
        """Return True if every worker has exported each series.

        `increase()` ignores the first sample of a series, so a first event must be counted before
        the test.
        """
        return all(self._has_counted(name, *one) for name in WORKERS for one in series)

    def wait_counted(self, *series: tuple[str, str]) -> None:
        wait_until(lambda: self.have_counted(*series), PATIENCE, "every worker failed once")

    def wait_counted_once(self, metric: str, role: str) -> None:
        """Wait until some worker has counted an event of the metric for the role."""
        wait_until(
            lambda: any(self._has_counted(name, metric, role) for name in WORKERS),
            PATIENCE,
            f"{role} failed once",
        )

    def _has_counted(self, name: str, metric: str, role: str) -> bool:
        wanted = {self.world.driver(role), self.world.classes[role]}
        found = self.world.scrape(name).get(metric, ())
        return any(wanted & set(labels.values()) and value for labels, value in found)

    def warm_up(self) -> None:
        claimed = "csi_fleet_claim_to_volume_seconds_count"
        for _ in range(20):
            names = [*self.bind("steady", 6)[0], *self.bind("slow", 6)[0]]
            self.delete(names)
            self.world.scene.wait_gone()
            deleted = ("controller_persistentvolume_delete_total", "steady")
            if self.have_counted((claimed, "steady"), (claimed, "slow"), deleted):
                return
        raise AssertionError("a worker gets nothing to do")

    # Actions that begin an alert or end it.

    def hang(self) -> None:
        self.mode("hang", mode="hang")
        self.claim("hang", LIMITS["hang"] + 10)

    def flap(self) -> None:
        self.mode("flaps", mode="refuses", delay=1)
        self.claim("flaps", 6)

    def lose_drivers(self) -> None:
        """Disconnect one driver, list one that never existed, and remove one that has open work."""
        self.mode("gone", mode="gone")
        self.mode("left", mode="exhausted")
        self.claim("left", 3)
        self.wait_counted_once("controller_persistentvolumeclaim_provision_failed_total", "left")
        others = [role for role in ROLES if role != "left"]
        self.world.serve(*others, never="/nowhere/csi.sock")

    def find_drivers(self) -> None:
        for role in ("gone", "left"):
            self.mode(role)
        self.world.serve(*ROLES)

    def refuse_attach(self) -> None:
        (name,), _ = self.bind("attach", 1)
        self.mode("attach", mode="exhausted")
        claim = self.world.scene.get(name) or {}
        self.world.attach("attach", claim["spec"]["volumeName"])

    def fill_redis(self) -> None:
        used = self.world.client.info("memory")["used_memory"]
        self.world.client.config_set("maxmemory", str(int(used / 0.7)))

    def empty_redis(self) -> None:
        self.world.client.config_set("maxmemory", str(2**30))

    def refuse_volumes(self) -> None:
        """Let the API server reject the PVs of the role `refused`."""
        self.refusal.enter_context(volumes_refused(self.world.api, self.world.driver("refused")))
        self.claim("refused", 3)

    def take_volumes(self) -> None:
        self.refusal.close()

    def fill(self) -> None:
        self.mode("full", mode="exhausted")
        self.claim("full", 4)

    def stick(self) -> None:
        self.mode("stuck", mode="exhausted")
        self.delete(self.stuck)

    def give_up(self) -> None:
        self.hopeless = f"plain-{self.numbers}"
        self.world.plugins["plain"].script.set("provision", self.hopeless, "final:no")
        self.claim("plain", 1)

    def replay(self) -> None:
        self.world.plugins["plain"].script.set("provision", self.hopeless, "ok")
        self.world.tool.ok("failed", "--replay")

    def break_plugin(self) -> None:
        self.world.plugins["broken"].script.set("guard", self.broken[0], "raises")
        self.delete(self.broken)

    def mend_plugin(self) -> None:
        self.world.plugins["broken"].script.set("guard", self.broken[0], "ok")

    def scribble(self) -> None:
        driver = self.world.driver("steady")
        self.world.client.hset("csifleet:leases", f"claims|{driver}|nobody/nothing|u1", "rubbish")

    def clear_quarantine(self) -> None:
        self.world.client.delete("csifleet:quarantine")

    def be_slow(self) -> None:
        self.mode("slow", delay=SLOW_SECONDS)

    def freeze_workers(self) -> None:
        """Freeze the workers one after the other.

        The next worker has leases when a frozen one continues, so leases are lost in every window
        of the rule, however slow the machine is.
        """
        self.mode("frozen", delay=3)
        for name in WORKERS[1:]:
            self.claim("frozen", 24)
            self.freeze_worker(name)

    def freeze_worker(self, name: str) -> None:
        """Freeze a worker in the middle of calls, for longer than its leases last."""
        world = self.world
        wait_until(lambda: world.running_on(name, "frozen") >= 2, PATIENCE, "it works")
        world.signal(signal.SIGSTOP, name)
        wait_until(lambda: not world.running_on(name, "frozen"), PATIENCE, "others take over")
        world.signal(signal.SIGCONT, name)

    def hang_watchers(self) -> None:
        """Kill one watcher, and stop the other without ending it."""
        self.world.signal(signal.SIGKILL, "watcher-0")
        self.world.signal(signal.SIGSTOP, "watcher-1")

    def bring_watchers(self) -> None:
        self.world.signal(signal.SIGCONT, "watcher-1")
        self.bring("watcher-0")

    def hang_workers(self) -> None:
        self.world.signal(signal.SIGKILL, "worker-0")
        self.world.signal(signal.SIGSTOP, *WORKERS[1:])
        self.claim("steady", 2)

    def bring_workers(self) -> None:
        self.world.signal(signal.SIGCONT, *WORKERS[1:])
        self.bring("worker-0")

    def bring(self, name: str) -> None:
        """Start a process again, and wait until it can work; a worker must be connected to its
        drivers."""
        self.world.run(name)
        wait_until(lambda: self.world.is_ready(name), PATIENCE, f"{name} is ready")
        wait_until(lambda: self.has_drivers(name), PATIENCE, f"{name} is connected")

    def has_drivers(self, name: str) -> bool:
        """Return True if a worker is connected to every driver; a watcher needs no driver."""
        found = self.world.scrape(name).get("csi_fleet_driver_connected", ())
        return name in WATCHERS or sum(value == 1 for _, value in found) >= len(ROLES)

    def hang_redis(self) -> None:
        """Stop Redis, check that a scrape reports it in time, and then kill Redis."""
        process = self.world.redis.process
        assert process is not None
        process.signal(signal.SIGSTOP)
        assert self.world.scrape(WATCHERS[0])["csi_fleet_queue_up"] == [({}, 0.0)]
        self.world.redis.kill()

    def bring_redis(self) -> None:
        self.world.redis.start()


def _nothing(_actions: Actions) -> None:
    """Do nothing: the cause needs no repetition."""


@dataclass(frozen=True)
class Cause:
    """One cause of alerts.

    Attributes:
        begin, mend: the actions that cause the problem and repair it.
        fires: the alerts that fire, each with the role that it names ("" for none).
        also: further alerts that may fire during that time.
        goes_on: an action that is repeated until its alerts fire.
    """

    begin: Callable[[Actions], object]
    mend: Callable[[Actions], object]
    fires: set[tuple[str, str]]
    also: set[tuple[str, str]] = field(default_factory=set)
    goes_on: Callable[[Actions], object] = _nothing


def behaves(role: str) -> Callable[[Actions], None]:
    """Return an action that lets the driver of the role behave normally again."""
    return lambda actions: actions.mode(role)


FROZEN = Cause(
    Actions.freeze_workers,
    behaves("frozen"),
    {("CsiFleetLeasesLost", "")},
    {("CsiFleetClaimsSlow", "frozen")},
    goes_on=Actions.freeze_workers,
)
# When a driver is repaired, its waiting volumes are created and count as slow. One more claim is
# created each time, because a rate needs new figures within its window, however slow the machine
# is.
SLOW = Cause(
    Actions.be_slow,
    behaves("slow"),
    {("CsiFleetClaimsSlow", "slow")},
    {("CsiFleetClaimsSlow", role) for role in (*ROLES, "plain")},
    goes_on=lambda actions: actions.claim("slow", 1),
)
NO_API = Cause(
    lambda actions: actions.world.cut_api(),
    lambda actions: actions.world.mend_api(),
    {("CsiFleetApiServerFails", "watcher-1")},
)
# These causes begin together, before the dashboard is checked; each role belongs to one cause.
TOGETHER = [
    Cause(Actions.hang, behaves("hang"), {("CsiFleetKeysWaitLong", "hang")}),
    Cause(
        Actions.flap,
        behaves("flaps"),
        {("CsiFleetProvisioningFails", "flaps")},
    ),
    Cause(
        Actions.lose_drivers,
        Actions.find_drivers,
        {
            ("CsiFleetDriverDisconnected", "gone"),
            ("CsiFleetDriverDisconnected", "never"),
            ("CsiFleetDriverWithoutWorker", "left"),
        },
        {
            ("CsiFleetDriverWithoutWorker", "gone"),
            ("CsiFleetProvisioningFails", "left"),
            ("CsiFleetKeysWaitLong", "left"),
            ("CsiFleetKeysNotTaken", "left"),
        },
    ),
    Cause(Actions.refuse_attach, behaves("attach"), {("CsiFleetWorkFails", "attach")}),
    Cause(
        Actions.refuse_volumes,
        Actions.take_volumes,
        {("CsiFleetVolumesUnsaved", "")},
    ),
    Cause(Actions.fill, behaves("full"), {("CsiFleetProvisioningFails", "full")}),
    Cause(Actions.stick, behaves("stuck"), {("CsiFleetDeletionFails", "stuck")}),
    Cause(
        Actions.give_up,
        Actions.replay,
        {("CsiFleetKeysGivenUp", "")},
        {("CsiFleetProvisioningFails", "plain")},
    ),
    Cause(Actions.break_plugin, Actions.mend_plugin, {("CsiFleetInternalErrors", "broken")}),
    Cause(Actions.scribble, Actions.clear_quarantine, {("CsiFleetRecordsUnreadable", "")}),
]
ALONE = [
    Cause(Actions.fill_redis, Actions.empty_redis, {("CsiFleetRedisMemory", "")}),
    Cause(Actions.hang_watchers, Actions.bring_watchers, {("CsiFleetNoWatcher", "")}),
    Cause(
        Actions.hang_workers,
        Actions.bring_workers,
        {("CsiFleetNoWorker", ""), ("CsiFleetKeysNotTaken", "steady")},
        {("CsiFleetLeasesLost", ""), ("CsiFleetClaimsSlow", "steady")}
        | {("CsiFleetKeysNotTaken", role) for role in (*ROLES, "plain", "broken")}
        | {("CsiFleetDriverWithoutWorker", role) for role in (*ROLES, "plain", "broken")},
    ),
    # A scrape of a process whose Redis hangs takes longer than the second that is allowed here.
    Cause(
        Actions.hang_redis,
        Actions.bring_redis,
        {("CsiFleetQueueUnreachable", "")},
        {("CsiFleetNoWatcher", ""), ("CsiFleetLeasesLost", ""), ("CsiFleetClaimsSlow", "steady")},
    ),
]
CAUSES = [*TOGETHER, SLOW, FROZEN, NO_API, *ALONE]
