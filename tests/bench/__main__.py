"""`make bench` measures and writes build/bench.json and the tables of docs/performance-log.md.

    make bench                                   everything, about 20 minutes
    make bench QUICK=1                           less of everything, about 6 minutes
    make bench ONLY=throughput,recovery          some sections
    make bench ONLY=felt DRIVERS=1,20            the figures users notice, into docs/performance.md
    make bench PEER=/path/to/csi-provisioner     csi-provisioner in the same run
    make bench BASE=/path/to/checkout            another commit, with its .venv, in turn
    make bench ROUNDS=3 CSI_FLEET_TEST_KUBECONFIG=...   use this cluster; it gets filled

Without a cluster, the run starts a control plane. It asserts nothing. Sections: throughput,
topology, steady, recovery, scaling, cluster, queue, resizing, attachments, attachments-killed,
snapshots, life, saturated, systems, neighbours, memory, explain. A run of some sections replaces
only the results of these sections.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.bench.report import felt_table, write_felt, write_tables
from tests.bench.sections import FELT, SECTIONS, Plan
from tests.bench.systems import codes
from tests.support.controlplane import ControlPlane
from tests.support.fleet import ROOT
from tests.support.kube_api import KubeApi

RESULTS = ROOT / "build" / "bench.json"
DOCUMENT = ROOT / "docs" / "performance.md"
DETAILS = ROOT / "docs" / "performance-log.md"
PACKAGES = ("celery", "redis", "grpcio", "kubernetes", "msgspec")


@contextmanager
def cluster(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the given cluster, or start one for this run."""
    if given := environ.get("CSI_FLEET_TEST_KUBECONFIG"):
        yield Path(given)
        return
    with (
        tempfile.TemporaryDirectory(prefix="bench-cp-") as folder,
        ControlPlane(Path(folder)) as plane,
    ):
        yield plane.kubeconfig


def machine(api: KubeApi, peer: Path | None) -> dict[str, str]:
    """Return the facts about the machine and the software of this run."""
    info = Path("/proc/cpuinfo").read_text()
    models = [line.split(":")[1].strip() for line in info.splitlines() if "model name" in line]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    found = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} x {models[0] if models else '?'}, {memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "kubernetes": api.get("/version")["gitVersion"],
        "packages": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    }
    for name, code in zip(("commit", "base"), codes(), strict=False):
        log = ["git", "-C", str(code), "log", "-1", "--format=%h"]
        found[name] = subprocess.run(log, check=True, capture_output=True, text=True).stdout.strip()
    return found | ({"reference": "csi-provisioner 6.3.0"} if peer else {})


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Run the chosen sections and return the exit code."""
    chosen = [one for one in environ.get("ONLY", "").split(",") if one] or list(SECTIONS)
    is_felt = chosen == ["felt"]
    chosen = list(FELT) if is_felt else chosen
    given = tuple(int(one) for one in environ.get("DRIVERS", "").split(",") if one)
    drivers = given or ((1, 10, 20) if is_felt else ())
    if unknown := set(chosen) - set(SECTIONS):
        print(f"ONLY: no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
        return 2
    peer = Path(environ["PEER"]) if environ.get("PEER") else None
    is_quick = environ.get("QUICK", "") not in {"", "0"}
    rounds = int(environ.get("ROUNDS") or (1 if is_quick else 2))
    started = time.monotonic()
    with cluster(environ) as kubeconfig, KubeApi(kubeconfig) as api:
        plan = Plan(api, kubeconfig, peer, is_quick, rounds, drivers=drivers)
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results["machine"] = machine(api, peer)
        fresh = {"machine": results["machine"]}
        for name in chosen:
            SECTIONS[name](plan)
            fresh[name] = results[name] = plan.records.get(name, [])
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1))
            write_tables(DETAILS, fresh)
        if is_felt:
            write_felt(DOCUMENT, fresh)
            print(felt_table(fresh))
    print(f"{RESULTS} and {DOCUMENT} after {time.monotonic() - started:.0f} s")
    return 0


def end(number: int, _frame: object) -> None:
    """Exit with cleanup: a stopped run removes its objects and processes."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    sys.exit(main())
