"""The sections of `make bench`: each adds records to the results and can be run alone."""

from __future__ import annotations

import itertools
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench import attaching, several, snapshotting
from tests.bench import life as lives
from tests.bench import resizing as expansions
from tests.bench import saturated as saturation
from tests.bench.drivers import BenchDrivers
from tests.bench.load import Load
from tests.bench.systems import Central, Ours, Peer, Sidecars, System, codes, ours
from tests.bench.throughput import measure, quantile
from tests.bench.usage import memory, watches
from tests.support.fleet import ROOT, program
from tests.support.kube_api import KubeApi

Record = dict[str, Any]


@dataclass
class Plan:
    """The options of a run: its cluster, its systems and the amount of work."""

    api: KubeApi
    kubeconfig: Path
    peer: Path | None
    is_quick: bool
    rounds: int
    records: dict[str, list[Record]] = field(default_factory=dict)
    drivers: tuple[int, ...] = ()

    def counts(self, *usual: int) -> tuple[int, ...]:
        """Return the numbers of drivers: DRIVERS, else the section's (two in a quick run)."""
        return self.drivers or (usual[:2] if self.is_quick else usual)

    def add(self, section: str, record: Record) -> None:
        """Keep one record and print it."""
        self.records.setdefault(section, []).append(record)
        shown = {key: value for key, value in record.items() if not isinstance(value, dict)}
        print(section, shown, flush=True)


@contextmanager
def bench_drivers(
    count: int,
    *,
    delay_seconds: float = 0.0,
    has_topology: bool = False,
    attaches: bool = False,
    whole: bool = False,
) -> Iterator[BenchDrivers]:
    """Run drivers with fresh names, so that no system serves objects of an earlier run."""
    mark = uuid.uuid4().hex[:6]
    names = [f"d{number}-{mark}.bench.example.org" for number in range(count)]
    with (
        tempfile.TemporaryDirectory(prefix="bd-") as folder,
        BenchDrivers(
            Path(folder),
            names,
            delay_seconds=delay_seconds,
            has_topology=has_topology,
            attaches=attaches,
            whole=whole,
        ) as drivers,
    ):
        yield drivers


def throughput(plan: Plan) -> None:
    """Measure a burst at 1, 10, 20 and 50 drivers: all systems in turn, with interleaved rounds."""
    claims = 200 if plan.is_quick else 400
    for _, count in itertools.product(range(plan.rounds), plan.counts(1, 20, 10, 50)):
        burst(plan, "throughput", count, claims)


def topology(plan: Plan) -> None:
    """Measure the same with WaitForFirstConsumer, three zones and a selected node on each claim."""
    for count in (1,) if plan.is_quick else (1, 10, 20, 50):
        burst(plan, "topology", count, 200, has_topology=True)


def burst(
    plan: Plan,
    section: str,
    count: int,
    claims: int,
    *,
    has_topology: bool = False,
    per_second: float = 0.0,
) -> None:
    """Measure one load of each system with the same drivers."""
    with bench_drivers(count, has_topology=has_topology) as drivers:
        for make in systems(plan, drivers):
            idle = watches(plan.api)
            with make() as system:
                found = measure(
                    plan.api,
                    system,
                    drivers.names,
                    claims=claims,
                    idle_watches=idle,
                    has_topology=has_topology,
                    per_second=per_second,
                )
            plan.add(section, found.record())


def systems(plan: Plan, drivers: BenchDrivers) -> list[Callable[[], System]]:
    """Return csi-fleet, and csi-provisioner if its binary was given."""
    made = ours(lambda code: Ours(plan.kubeconfig, drivers, code=code))
    if plan.peer is not None:
        peer = plan.peer
        made.append(lambda: Peer(peer, plan.kubeconfig, drivers))
    return made


def steady(plan: Plan) -> None:
    """Measure 20 claims a second; csi-provisioner also with its default of 5 requests/s."""
    claims = 100 if plan.is_quick else 300
    for count in plan.counts(10):
        burst(plan, "steady", count, claims, per_second=20)
    if plan.peer is None:
        return
    with bench_drivers(1) as drivers:
        with Peer(plan.peer, plan.kubeconfig, drivers, is_throttled=True) as system:
            idle = watches(plan.api)
            found = measure(plan.api, system, drivers.names, claims=40, idle_watches=idle)
        plan.add("steady", found.record())


def scaling(plan: Plan) -> None:
    """Measure numbers of worker processes with a driver that takes 200 ms per call."""
    for workers in (1, 2) if plan.is_quick else (1, 2, 3, 4):
        with bench_drivers(1, delay_seconds=0.2) as drivers:
            # Threads are the limit of one process here: 4 threads with 5 claims a second each.
            system = Ours(plan.kubeconfig, drivers, "--concurrency=4", workers=workers)
            idle = watches(plan.api)
            with system:
                found = measure(
                    plan.api,
                    system,
                    drivers.names,
                    claims=60 * workers,
                    idle_watches=idle,
                )
            plan.add("scaling", found.record() | {"workers": workers})


def recovery(plan: Plan) -> None:
    """Kill each part with SIGKILL in the middle of a load."""
    for role in ("workers", "watcher", "redis", "beat"):
        for _ in range(1 if plan.is_quick else plan.rounds):
            for code in codes():
                plan.add("recovery", killed(plan, role, code))


def killed(plan: Plan, role: str, code: Path) -> Record:
    """Kill one process of two workers, a watcher, Redis and beat at 20 claims/s.

    Return the slowest claim created before the kill, and after it, in seconds to its PV.
    """
    with bench_drivers(1, delay_seconds=0.2) as drivers:
        system = Ours(plan.kubeconfig, drivers, workers=2, code=code)
        with system, Load(plan.api, f"b{uuid.uuid4().hex[:7]}", drivers.names) as load:
            load.run(4, timeout_seconds=60)
            load.delete_all()
            at: list[float] = []

            def kill() -> None:
                victim = system.groups()[role][0]
                at.append(time.time())
                os.kill(victim, signal.SIGKILL)

            timer = threading.Timer(3.0, kill)
            timer.start()
            times = load.run(200, per_second=20, timeout_seconds=60)
            timer.join()
            waits = {name: times.saved[name] - begin for name, begin in times.created.items()}
            in_flight = [
                wait
                for name, wait in waits.items()
                if times.created[name] <= at[0] < times.saved[name]
            ]
            later = [wait for name, wait in waits.items() if times.created[name] > at[0]]
            load.delete_all()
    return {
        "system": system.name,
        "killed": role,
        "claims": len(waits),
        "in_flight": len(in_flight),
        "in_flight_max_s": round(max(in_flight, default=0.0), 2),
        "later_max_s": round(max(later, default=0.0), 2),
        "median_s": round(sorted(waits.values())[len(waits) // 2], 2),
    }


def cluster(plan: Plan) -> None:
    """Measure a watcher with 50,000 claims and PVs: its cold start, then repeated relists."""
    pairs = 5000 if plan.is_quick else 50_000
    text = tool("tests.bench.watcher_memory", f"--pairs={pairs}", "--relists=3")
    found: Record = {"pairs": pairs}
    if match := re.search(r"listed in ([\d.]+) s", text):
        found["list_to_ready_s"] = float(match[1])
    for label, key in (("after the lists", "start"), ("after 20,000 events", "events")):
        if match := re.search(rf"{label}: .*PSS (\d+) MiB", text):
            found[f"pss_{key}"] = int(match[1])
    found["pss_relists"] = [
        int(one) for one in re.findall(r"after relist \d+: .*PSS (\d+) MiB", text)
    ]
    plan.add("cluster", found)


def queue(plan: Plan) -> None:
    """Measure the operations of the queue alone, with its own Redis."""
    text = tool("tests.bench.queue_ops")
    for line in text.splitlines():
        plan.add("queue", {"line": line})


def resizing(plan: Plan) -> None:
    """Measure 500 expansions in a burst with 10,000 pods; PEER_RESIZER= adds csi-resizer."""
    claims, pods = (100, 1000) if plan.is_quick else (500, 10_000)
    peer = given_peer("PEER_RESIZER")
    for record in expansions.measured(
        plan.api, plan.kubeconfig, peer, claims=claims, others=pods, delay=0.0
    ):
        plan.add("resizing", record)


def snapshots(plan: Plan) -> None:
    """Measure 80 snapshots in a burst, then their deletion.

    PEER_SNAPSHOTTER= and PEER_SNAPSHOT_CONTROLLER= add the Go programs.
    """
    for record in snapshotting.measured(plan.api, plan.kubeconfig, 20 if plan.is_quick else 80):
        plan.add("snapshots", record)


def life(plan: Plan) -> None:
    """Measure the whole life of volumes; PEER_FIVE=folder adds the Go sidecars."""
    count = 40 if plan.is_quick else 100
    peer = given_peer("PEER_FIVE")
    for _, drivers in itertools.product(range(plan.rounds), plan.counts(1, 20, 10, 50)):
        for record in lives.measured(plan.api, plan.kubeconfig, drivers, count, peer):
            plan.add("life", record)


def saturated(plan: Plan) -> None:
    """Measure ten drivers, each a process that works, while other processes keep all cores busy."""
    for _ in range(plan.rounds):
        claims = 100 if plan.is_quick else 400
        for found in saturation.measured(plan.api, plan.kubeconfig, claims, plan.peer):
            plan.add("saturated", found.record())


def several_systems(plan: Plan) -> None:
    """Measure one and two systems with fake API servers; also write docs/scale.md.

    This takes 4 to 5 minutes.
    """
    size = (600, 10.0) if plan.is_quick else (several.CLAIMS, several.STEADY_SECONDS)
    found = []
    for record in several.measured(*size):
        plan.add("systems", record)
        found.append(record)
    several.write(found)


def tool(module: str, *arguments: str) -> str:
    """Run another measurement and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=400,
    )
    return done.stdout


def attachments(plan: Plan) -> None:
    """Measure 500 attachments and their deletion, at 1 and 10 drivers; PEER_ATTACHER= adds Go."""
    count = 200 if plan.is_quick else 500
    peer, only = given_peer("PEER_ATTACHER"), "--controllers=attacher"
    for _, drivers in itertools.product(range(plan.rounds), (1, 10)):
        with bench_drivers(drivers, attaches=True) as host:
            made = ours(lambda code, host=host: Ours(plan.kubeconfig, host, only, code=code))
            if peer is not None:
                made.append(
                    lambda host=host, one=peer: attaching.PeerAttacher(one, plan.kubeconfig, host)
                )
            for make in made:
                with make() as system:
                    plan.add("attachments", attaching.attach(plan.api, system, host.names, count))


def attachments_killed(plan: Plan) -> None:
    """Kill during a publish: csi-fleet, and csi-attacher with a second replica."""
    for record in attaching.killed(plan.api, plan.kubeconfig, given_peer("PEER_ATTACHER")):
        plan.add("attachments-killed", record)


def neighbours(plan: Plan) -> None:
    """Measure five claims a second of one namespace while another makes 600 for the same driver."""
    flood, seconds = (200, 4) if plan.is_quick else (600, 10)
    with bench_drivers(1, delay_seconds=0.05) as drivers:
        for make in systems(plan, drivers):
            name = uuid.uuid4().hex[:7]
            with (
                make() as system,
                Load(plan.api, f"f{name}", drivers.names) as loud,
                Load(plan.api, f"q{name}", drivers.names) as quiet,
            ):
                quiet.run(1, timeout_seconds=60)
                flooding = threading.Thread(target=loud.run, args=(flood,))
                flooding.start()
                times = quiet.run(5 * seconds, per_second=5)
                flooding.join()
                loud.delete_all()
                quiet.delete_all()
            found: Record = {"system": system.name, "drivers": 1, "flood": flood}
            for stage, reached in (("pv", times.saved), ("bound", times.bound)):
                created = times.created
                waits = sorted(reached[one] - created[one] for one in created if one in reached)
                found |= {
                    f"{stage}_p50": quantile(waits, 0.5),
                    f"{stage}_p99": quantile(waits, 0.99),
                }
            plan.add("neighbours", found)


def at_rest(plan: Plan) -> None:
    """Measure the PSS of idle systems with all controllers, in each mode.

    PEER_FIVE=folder adds the Go sidecars.
    """
    peer = given_peer("PEER_FIVE")
    for count in plan.counts(1, 20):
        with bench_drivers(count, whole=True) as drivers:
            made = [
                maker
                for kind in (lives.WholeOurs, Central, Sidecars)
                for maker in ours(partial(kind, plan.kubeconfig, drivers))
            ]
            if peer is not None:
                made.append(partial(lives.peer_five, peer, plan.kubeconfig, drivers))
            for make in made:
                with make() as system:
                    time.sleep(5)
                    parts = memory(system.groups())
                record: Record = {"system": system.name, "drivers": count}
                record["mode"] = getattr(system, "mode", "run")
                record["pss_mib"] = round(sum(parts.values()), 1)
                record["of which"] = ", ".join(f"{name} {size}" for name, size in parts.items())
                plan.add("memory", record)


def explain(plan: Plan) -> None:
    """Measure ten calls of `csi-fleet explain` for a Bound claim, one after the other."""
    with bench_drivers(1) as drivers:
        for code in codes():
            name = f"x{uuid.uuid4().hex[:7]}"
            system = Ours(plan.kubeconfig, drivers, code=code)
            with system, Load(plan.api, name, drivers.names) as load:
                load.run(1, timeout_seconds=60)
                command = [*program(code), "explain", "pvc", f"{name}/{name}-0"]
                command.append(f"--kubeconfig={plan.kubeconfig}")
                command.append(f"--redis-url={system.fleet.redis_url}")
                took = list[float]()
                for _ in range(10):
                    started = time.monotonic()
                    subprocess.run(
                        command,
                        cwd=code,
                        env=system.fleet.env,
                        check=True,
                        stdout=subprocess.DEVNULL,
                    )
                    took.append(time.monotonic() - started)
                load.delete_all()
            median = round(statistics.median(took), 3)
            plan.add("explain", {"system": system.name, "median_s": median})


def given_peer(variable: str) -> Path | None:
    """Return the path of a Go sidecar's binary from this variable."""
    given = os.environ.get(variable)
    return Path(given) if given else None


SECTIONS: dict[str, Callable[[Plan], None]] = {
    "throughput": throughput,
    "attachments": attachments,
    "attachments-killed": attachments_killed,
    "recovery": recovery,
    "scaling": scaling,
    "cluster": cluster,
    "queue": queue,
    "steady": steady,
    "topology": topology,
    "resizing": resizing,
    "snapshots": snapshots,
    "life": life,
    "saturated": saturated,
    "systems": several_systems,
    "neighbours": neighbours,
    "memory": at_rest,
    "explain": explain,
}
FELT = (
    "throughput",
    "steady",
    "saturated",
    "neighbours",
    "attachments",
    "snapshots",
    "memory",
    "life",
    "recovery",
    "explain",
)
"""What a user feels; `ONLY=felt`, at 1, 10 and 20 drivers."""
