"""CPU seconds, PSS and API requests of processes and of the API server, measured from outside."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.kube_api import KubeApi

_TICKS = os.sysconf("SC_CLK_TCK")
_REQUEST = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)", re.MULTILINE)
_WATCHES = re.compile(
    r'^apiserver_longrunning_requests\{[^}]*verb="WATCH"[^}]*\} (\S+)', re.MULTILINE
)
_CPU = re.compile(r"^process_cpu_seconds_total (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Groups = Mapping[str, Iterable[int]]


def tree(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += tree(int(child))
    except OSError:
        pass
    return found


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of one process so far, or 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def pss_mib(pid: int) -> float:
    """Return the proportional memory: pages that forks share are counted once over all of them."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def fleet_groups(pid: int) -> dict[str, list[int]]:
    """Return the processes of one `csi-fleet run` by role."""
    found: dict[str, list[int]] = {}
    for one in tree(pid):
        found.setdefault("run" if one == pid else _role(one), []).append(one)
    return found


def _role(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        words = {*line, *Path(f"/proc/{pid}/comm").read_text().split()}
    except OSError:
        return "gone"
    if any(word.endswith(("redis-server", "valkey-server")) for word in words):
        return "redis"
    for name in ("watcher", "beat", "worker"):  # beat is `workers beat`
        if any(name in word for word in words if "/" not in word):
            return "workers" if name == "worker" else name
    return "other"


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of all groups and the API server."""

    cpu: dict[str, float]
    requests: Counter[str]
    api_cpu: float


def sample(api: KubeApi, groups: Groups) -> Sample:
    """Measure CPU by group, requests by verb and resource, and CPU of the API server."""
    text = metrics_text(api)
    requests: Counter[str] = Counter()
    for labels, value in _REQUEST.findall(text):
        label = dict(_LABEL.findall(labels))
        resource = "/".join(filter(None, (label.get("resource"), label.get("subresource"))))
        if label.get("verb") not in {"WATCH", "CONNECT"}:
            requests[f"{label.get('verb')} {resource}"] += int(float(value))
    found = _CPU.search(text)
    return Sample(
        {name: sum(map(cpu_seconds, pids)) for name, pids in groups.items()},
        requests,
        float(found[1]) if found else 0.0,
    )


def watches(api: KubeApi) -> int:
    """Return the number of watch connections that the API server has now."""
    return round(sum(float(one) for one in _WATCHES.findall(metrics_text(api))))


def memory(groups: Groups) -> dict[str, float]:
    """Return the PSS in MiB by group."""
    return {name: round(sum(map(pss_mib, pids)), 1) for name, pids in groups.items()}


def metrics_text(api: KubeApi) -> str:
    """Return the API server's own metrics."""
    return api.text("/metrics")
