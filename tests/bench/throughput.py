"""Claims per second, latency, CPU, memory and API requests of one system with N drivers."""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict, dataclass, field

from tests.bench.load import Load, Times
from tests.bench.systems import System
from tests.bench.usage import Groups, Sample, memory, sample, watches
from tests.support.kube_api import KubeApi

WARM_CLAIMS_PER_DRIVER = 1


@dataclass
class Figures:
    """One run. Rates per second, latencies in seconds, CPU in ms per claim, memory in MiB."""

    system: str
    drivers: int
    mode: str
    claims: int
    pv_per_s: float = 0.0
    bound_per_s: float = 0.0
    pv_p50: float = 0.0
    pv_p99: float = 0.0
    bound_p50: float = 0.0
    bound_p99: float = 0.0
    deleted_per_s: float = 0.0
    cpu_ms: dict[str, float] = field(default_factory=dict)
    cpu_ms_delete: dict[str, float] = field(default_factory=dict)
    api_cpu_ms: float = 0.0
    pss: dict[str, float] = field(default_factory=dict)
    watches: int = 0
    requests: dict[str, float] = field(default_factory=dict)
    missing: int = 0

    @property
    def cpu_total(self) -> float:
        """Return the CPU of all processes of the system, including Redis."""
        return sum(self.cpu_ms.values())

    @property
    def pss_total(self) -> float:
        return sum(self.pss.values())

    def record(self) -> dict[str, object]:
        """Return the figures for the JSON file."""
        totals = {"cpu_ms_total": self.cpu_total, "pss_total": self.pss_total}
        return asdict(self) | totals


def measure(
    api: KubeApi,
    system: System,
    drivers: list[str],
    *,
    claims: int,
    idle_watches: int,
    per_second: float = 0.0,
    has_topology: bool = False,
) -> Figures:
    """Measure one load, after a small load that connects and warms everything."""
    mode = "WaitForFirstConsumer" if has_topology else "Immediate"
    if per_second:
        mode += f", {per_second:g} claims/s"
    found = Figures(system.name, len(drivers), mode, claims)
    groups = system.groups()
    with Load(api, f"b{uuid.uuid4().hex[:7]}", drivers, has_topology=has_topology) as load:
        load.run(WARM_CLAIMS_PER_DRIVER * len(drivers), timeout_seconds=60)
        time.sleep(1)
        found.watches = watches(api) - idle_watches - 2  # minus the watches of the load
        before = sample(api, groups)
        times = load.run(claims, per_second=per_second)
        _settle(load)
        after = sample(api, groups)
        found.pss = memory(groups)
        tell(found, times, before, after)
        found.deleted_per_s = round(load.delete_all(), 1)
        _settle(load)
        found.cpu_ms_delete = cpu_per_claim(after, sample(api, groups), claims)
    return found


def tell(found: Figures, times: Times, before: Sample, after: Sample) -> None:
    """Fill in the figures from the times and the two samples."""
    start, claims = min(times.created.values()), found.claims
    to_pv = sorted(at - times.created[name] for name, at in times.saved.items())
    to_bound = sorted(at - times.created[name] for name, at in times.bound.items())
    found.missing = claims - len(to_bound)
    if to_pv and to_bound:
        found.pv_per_s = round(len(to_pv) / (max(times.saved.values()) - start), 1)
        found.bound_per_s = round(len(to_bound) / (max(times.bound.values()) - start), 1)
        found.pv_p50, found.pv_p99 = quantile(to_pv, 0.5), quantile(to_pv, 0.99)
        found.bound_p50, found.bound_p99 = quantile(to_bound, 0.5), quantile(to_bound, 0.99)
    found.cpu_ms = cpu_per_claim(before, after, claims)
    found.api_cpu_ms = round(1000 * (after.api_cpu - before.api_cpu) / claims, 2)
    for name, count in (after.requests - before.requests).items():
        if count >= 0.05 * claims:
            found.requests[name] = round(count / claims, 2)


def cpu_per_claim(before: Sample, after: Sample, claims: int) -> dict[str, float]:
    """Return the milliseconds by group."""
    return {
        name: round(1000 * (after.cpu[name] - before.cpu[name]) / claims, 2) for name in after.cpu
    }


def quantile(ordered: list[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 3)


def _settle(load: Load) -> None:
    """Wait for late events and status updates, which are part of the cost of the claims."""
    del load
    time.sleep(1.5)


def groups_of(system: System) -> Groups:
    return system.groups()
