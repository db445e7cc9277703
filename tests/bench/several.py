"""Measure the effect of a second system in one cluster: claims a second and CPU per claim.

`make bench ONLY=systems` runs it, or `python -m tests.bench.several [CLAIMS [SECONDS]]` without a
control plane. Each system has its own API server that is not the limit (standin_api.py), a Redis, a
watcher, a worker process and four drivers. Its watcher sees the claims of all systems.

The runs are one system, each of two systems alone, both together, and both together at a steady
rate. On two cores the rate of both together can't double. The result is the CPU per claim of each
role, from which `model` computes the cores and the rate at which the first process is full.
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.drivers import BenchDrivers
from tests.bench.report import plain, table
from tests.bench.standin_api import StandInApi
from tests.bench.usage import cpu_seconds, fleet_groups
from tests.support.fleet import ROOT, Fleet
from tests.support.redis_server import RedisServer, find_redis_server
from tests.support.waiting import wait_until

Record = dict[str, Any]
DOCUMENT = ROOT / "docs" / "scale.md"
BEGIN, END = "<!-- systems: begin -->", "<!-- systems: end -->"
CLAIMS, STEADY_SECONDS = 3000, 60.0
DRIVERS = 4
WARM_UP = 60
# Claims a second that arrive per system: more than a system can take, as a cluster would send them.
FEED = 1000.0
# The share of the burst's rate, so that a steady load leaves room.
STEADY_SHARE = 0.7
LONGEST_SECONDS = 60.0
ROLES = ("workers", "watcher", "redis", "api", "drivers")
TARGET, SYSTEMS = 1000.0, 4


@dataclass(frozen=True, slots=True)
class Rig:
    """One system: its processes, and the drivers whose claims it gets."""

    index: int
    names: Sequence[str]
    foreign: Sequence[str]
    api: StandInApi
    fleet: Fleet
    redis: RedisServer
    drivers: BenchDrivers

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds so far by role."""
        assert self.fleet.process is not None
        assert self.redis.process is not None
        groups = fleet_groups(self.fleet.process.pid)
        groups |= {"redis": [self.redis.process.pid], "api": [self.api.pid]}
        groups |= {"drivers": [self.drivers.pid]}
        return {role: sum(map(cpu_seconds, groups.get(role, []))) for role in ROLES}

    def feed(self, count: int, per_second: float) -> None:
        """Create claims of its own drivers and of the other systems' drivers."""
        self.api.feed(own=self.names, foreign=self.foreign, count=count, per_second=per_second)

    def is_done(self, count: int) -> bool:
        """Return True if all claims have their PV."""
        return bool(self.api.figures()["saved"] >= count)


def driver_names(count: int) -> list[list[str]]:
    """Return fresh driver names, by the system that serves them."""
    mark = uuid.uuid4().hex[:6]
    return [
        [f"d{number}-s{index}-{mark}.bench.example.org" for number in range(DRIVERS)]
        for index in range(count)
    ]


@contextmanager
def rigs(count: int, active: Sequence[int]) -> Iterator[list[Rig]]:
    """Run the `active` ones of `count` systems."""
    binary = find_redis_server()
    if binary is None:
        raise RuntimeError("no redis-server on PATH")
    names = driver_names(count)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bs-")))
        servers = {}
        for index in active:
            (folder / f"r{index}").mkdir()
            servers[index] = RedisServer(binary, folder / f"r{index}").start()
            stack.callback(servers[index].kill)
        made = []
        for index in active:
            own = names[index]
            api = stack.enter_context(StandInApi(folder / f"a{index}"))
            drivers = stack.enter_context(BenchDrivers(folder / f"d{index}", own))
            file = folder / f"drivers-{index}.yaml"
            lines = [f"- {{name: {one}, endpoint: {drivers.address(one)}}}\n" for one in own]
            file.write_text("drivers:\n" + "".join(lines))
            flags = [f"--drivers-file={file}", "--workers=1", "--kube-api-qps=-1"]
            url = servers[index].url
            fleet = Fleet(folder / f"f{index}", api.kubeconfig, [], *flags, redis_url=url)
            stack.enter_context(fleet)
            foreign = [one for other in names if other is not own for one in other]
            made.append(Rig(index, own, foreign, api, fleet, servers[index], drivers))
        yield made


def run(rig: Rig, count: int) -> None:
    """Wait for the PVs of this number of claims."""
    wait_until(lambda: rig.is_done(count), LONGEST_SECONDS * 2, "all claims have a PV")


def loaded(
    made: Sequence[Rig], claims: int, per_second: float, *, systems: int, load: str
) -> Record:
    """Run one load on all these systems at once; return rate, waits and CPU per claim by role."""
    for rig in made:
        rig.feed(WARM_UP, FEED)
    for rig in made:
        run(rig, WARM_UP)
    before = [rig.cpu() for rig in made]
    started = time.monotonic()
    for rig in made:
        rig.feed(claims, per_second)
    for rig in made:
        run(rig, claims)
    figures = [rig.api.figures() for rig in made]
    # All processes of a machine share one clock.
    seconds = max(one["last"] for one in figures) - started
    after = [rig.cpu() for rig in made]
    total = claims * len(made)
    spent = {
        f"{role}_ms": round(
            1000 * sum(b[role] - a[role] for a, b in zip(before, after, strict=True)) / total, 3
        )
        for role in ROLES
    }
    return {
        "systems": systems,
        "running": " ".join(str(rig.index) for rig in made),
        "load": load,
        "claims": total,
        "claims_per_s": round(total / seconds, 1),
        "p50_s": round(max(one["p50"] for one in figures), 3),
        "p99_s": round(max(one["p99"] for one in figures), 3),
        **spent,
    }


def measured(claims: int = CLAIMS, seconds: float = STEADY_SECONDS) -> Iterator[Record]:
    """Yield one record after the other; it takes at most five minutes with the usual figures."""
    rate = 0.0
    for count, active in ((1, (0,)), (2, (0,)), (2, (1,)), (2, (0, 1))):
        with rigs(count, active) as made:
            record = loaded(made, claims, FEED, systems=count, load="burst")
            yield record
            rate = STEADY_SHARE * record["claims_per_s"] / len(made)
            if len(made) > 1 and seconds:
                load = f"steady, {rate * len(made):.0f}/s for {seconds:.0f} s"
                yield loaded(made, int(rate * seconds) or 1, rate, systems=count, load=load)


def model(
    records: Sequence[Mapping[str, Any]], *, systems: int = SYSTEMS, target: float = TARGET
) -> dict[str, float]:
    """Compute the cost of `target` claims a second over `systems` systems from measured bursts.

    A watcher works on the claims of its own system and reads the events of all others. All other
    costs grow only with the system's own claims.

    Returns:
        Cores by role over all systems; `watcher_foreign_ms` per claim of another system; the
        claims a second at which the watchers and the Redis of all systems are full, with one core
        each; and `scaling`, the full rate per system relative to the full rate of one system.
    """
    bursts = [one for one in records if one["load"] == "burst"]
    one = next(record for record in bursts if record["systems"] == 1)
    parts = [record for record in bursts if record["systems"] > 1]
    cost = {
        role: _mean([record[f"{role}_ms"] for record in bursts]) for role in ("workers", "redis")
    }
    own = one["watcher_ms"]
    # Per own claim there is one claim of each other system.
    foreign = max(0.0, _mean([(one["watcher_ms"] - own) / (one["systems"] - 1) for one in parts]))

    def watchers_full(count: int) -> float:
        return 1000 / (own / count + foreign * (count - 1) / count)

    def full(count: int) -> float:
        return min(watchers_full(count), count * 1000 / cost["redis"])

    return {
        "workers_cores": target * cost["workers"] / 1000,
        "watcher_cores": target * (own + foreign * (systems - 1)) / 1000,
        "redis_cores": target * cost["redis"] / 1000,
        "watcher_foreign_ms": foreign,
        "watchers_full_per_s": watchers_full(systems),
        "redis_full_per_s": systems * 1000 / cost["redis"],
        "scaling": full(systems) / full(1) / systems,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def tables(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the results and the model as Markdown."""
    found = model(records)
    foreign = f"{found['watcher_foreign_ms']:.2f} ms per claim of another system"
    rows = [
        ["workers", f"{found['workers_cores']:.1f} cores, as many processes"],
        ["watchers", f"{found['watcher_cores']:.1f} cores, {foreign}"],
        ["watchers are full at", f"{found['watchers_full_per_s']:,.0f} claims/s"],
        ["Redis", f"{found['redis_cores']:.1f} cores"],
        ["Redis is full at", f"{found['redis_full_per_s']:,.0f} claims/s"],
        ["scaling factor per system", f"{found['scaling']:.2f}"],
    ]
    head = f"{TARGET:,.0f} claims/s over {SYSTEMS} systems, on paper | "
    return f"{plain(records)}\n\n{table(head, rows)}"


def write(records: Sequence[Mapping[str, Any]], document: Path = DOCUMENT) -> None:
    """Replace the text between the marks of docs/scale.md."""
    before, begin, rest = document.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} lacks {BEGIN} or {END}")
    document.write_text(f"{before}{BEGIN}\n\n{tables(records)}\n\n{END}{after}")


def main() -> None:
    claims = int(sys.argv[1]) if len(sys.argv) > 1 else CLAIMS
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else STEADY_SECONDS
    found = []
    for record in measured(claims, seconds):
        print(record, flush=True)
        found.append(record)
    print(tables(found))


if __name__ == "__main__":
    main()
