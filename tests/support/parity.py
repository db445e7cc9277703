"""Compares csi-fleet with the recorded cases of the Go sidecars: `make parity`.

The cases and their runner are in tests/parity. This program starts several control planes, because
a snapshot controller serves a whole cluster, so a cluster can run only one case with a snapshot
controller at a time. If the recording contains a known defect of the Go sidecar, the case is not
compared (docs/differences.md describes what csi-fleet does instead). A case's waits begin when
csi-fleet is ready. If a case fails while others run on a busy machine, it is run once more alone,
and only the second result counts. Before the second run, csi-fleet's records of calls with unknown
outcome are removed, because the second run would finish those calls.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.support.controlplane import ControlPlane
from tests.support.kube_api import KubeApi
from tests.support.spec_ids import CASE_FOLDERS, PARITY
from workers.constants import LABEL_INTENT
from workers.controllers import catalogue

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = 2
UP = ("watcher", "worker-0", "beat")  # the waits of a case begin when these controllers are ready
JOBS = 2  # in each cluster; each is a complete csi-fleet: watcher, worker, beat and Redis


def command_template() -> str:
    """Return the runner's command line for csi-fleet, with the runner's own placeholders."""
    program = Path(sys.executable).with_name("csi-fleet")
    return (
        f"{program} run --controllers={{component}} --kubeconfig={{kubeconfig}} "
        "--csi-address={csi_address} --leader-election=false {flags}"
    )


def runnable(case: Path) -> bool:
    """Return True if csi-fleet has a controller for each sidecar of the case."""
    content = json.loads(case.read_text())
    parts = [content, *content.get("with", ())]
    known = {spec.name for spec in catalogue.SPECS}
    return all(part.get("component", "provisioner") in known for part in parts)


class Runners:
    """The runner's processes, which end with this process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self._running: set[subprocess.Popen[str]] = set()

    def run(self, kubeconfig: Path, cases: list[Path], jobs: int) -> set[str]:
        """Run the runner over `cases`, print its output and return the ids of the cases that
        passed.

        Raises:
            subprocess.CalledProcessError: the runner itself broke (neither passed nor failed).
        """
        command = self.command(kubeconfig, cases, jobs)
        env = os.environ | {"CSI_PROTO": str(ROOT / "csi_client" / "proto" / "csi.proto")}
        env.pop("KUBECONFIG", None)  # it would override --kubeconfig
        passed = set()
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as runner:
            assert runner.stdout is not None
            self._running.add(runner)
            for line in runner.stdout:
                print(line, end="", flush=True)
                if match := re.match(r"ok +(\S+)", line):
                    passed.add(match.group(1))
        self._running.discard(runner)
        if runner.returncode not in {0, 1}:
            raise subprocess.CalledProcessError(runner.returncode, command[:4])
        return passed

    def command(self, kubeconfig: Path, cases: list[Path], jobs: int) -> list[str]:
        """Return the runner's command line."""
        options = self.options
        return [
            *(sys.executable, "-u", str(PARITY / "runner" / "run.py"), "compare"),
            *map(str, cases),
            *("--kubeconfig", str(kubeconfig), "--jobs", str(jobs)),
            *("--cluster-has", "CrossNamespaceVolumeDataSource", "--skip-defects"),
            *("--command", command_template()),
            *(word for part in UP for word in ("--up", part)),
            *(("--logs", str(options.logs)) if options.logs else ()),
            *(("--max-diffs", str(options.max_diffs)) if options.max_diffs else ()),
        ]

    def stop(self) -> None:
        """Let the runners stop their provisioners and end."""
        for runner in tuple(self._running):
            runner.send_signal(signal.SIGINT)


def main(arguments: list[str] | None = None) -> int:
    """Select the cases, run them and judge the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="parity", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="regular expression over case ids")
    parser.add_argument("--folder", default="", help="regular expression over the case folders")
    parser.add_argument("--jobs", type=int, default=JOBS, help="cases side by side in a cluster")
    parser.add_argument("--logs", type=Path, help="folder for csi-fleet's output, a file a case")
    parser.add_argument("--max-diffs", type=int, help="lines of difference shown per case")
    parser.add_argument("--kubeconfig", type=Path, help="use this cluster, start none")
    options = parser.parse_args(arguments)
    folders = [PARITY / name for name in CASE_FOLDERS if re.search(options.folder, name)]
    cases = sorted(case for folder in folders for case in folder.glob("*.json"))
    cases = [case for case in cases if re.search(options.only, case.stem) and runnable(case)]
    defects = [case for case in cases if is_defect(case)]
    if defects:
        print(f"defects of the reference, not compared: {' '.join(case.stem for case in defects)}")
    cases = [case for case in cases if case not in defects]
    if not cases:
        print("no such case")
        return 1
    passed = run_on_cluster(cases, options)
    failed = [case.stem for case in cases if case.stem not in passed]
    if failed:
        print(f"failed: {' '.join(failed)}")
    print(f"{len(passed)} passed, {len(failed)} failed", flush=True)
    return 1 if failed else 0


def is_defect(case: Path) -> bool:
    """Return True if the whole recording shows a known defect of the Go sidecar."""
    content = json.loads(case.read_text())
    return "reference_defect" in content and "defect_parts" not in content


def forget_attempts(kubeconfig: Path, cases: list[Path]) -> None:
    """Remove the ConfigMaps of unfinished attempts for the drivers of these cases."""
    contents = [json.loads(case.read_text()) for case in cases]
    drivers = {one["driver"]["name"] for one in contents if "driver" in one}
    with KubeApi(kubeconfig) as api:
        for found in api.items("/api/v1/configmaps", labelSelector=LABEL_INTENT):
            if any(f"|{driver}|" in str(found.get("data")) for driver in drivers):
                meta = found["metadata"]
                api.delete(f"/api/v1/namespaces/{meta['namespace']}/configmaps/{meta['name']}")


def run_twice(
    kubeconfigs: list[Path],
    cases: list[Path],
    options: argparse.Namespace,
    runners: Runners | None = None,
) -> set[str]:
    """Run the cases on all clusters, then run the failed cases once more, one at a time."""
    runners = runners or Runners(options)
    # Neighbouring cases are similar, so each cluster gets the same number of each sort.
    parts = [cases[index :: len(kubeconfigs)] for index in range(len(kubeconfigs))]
    with ThreadPoolExecutor(len(parts)) as pool:
        try:
            first = [
                pool.submit(runners.run, kubeconfig, part, options.jobs)
                for kubeconfig, part in zip(kubeconfigs, parts, strict=True)
            ]
            passed = set().union(*(one.result() for one in first))
            if options.jobs * len(parts) == 1:
                return passed
            for kubeconfig, part in zip(kubeconfigs, parts, strict=True):
                again = [case for case in part if case.stem not in passed]
                if again:
                    print(f"once more, alone: {' '.join(case.stem for case in again)}", flush=True)
                    forget_attempts(kubeconfig, again)
                    passed |= pool.submit(runners.run, kubeconfig, again, 1).result()
        except KeyboardInterrupt:
            runners.stop()
            raise
    return passed


def run_on_cluster(cases: list[Path], options: argparse.Namespace) -> set[str]:
    """Run on the given cluster, or on clusters started for this run."""
    if options.kubeconfig:
        return run_twice([options.kubeconfig], cases, options)
    with ExitStack() as stack:
        # Processes end with the thread that started them, so the pool stays open.
        pool = stack.enter_context(ThreadPoolExecutor())
        planes = []
        for _ in range(min(CLUSTERS, len(cases))):
            folder = tempfile.TemporaryDirectory(prefix="csi-fleet-parity-")
            planes.append(ControlPlane(Path(stack.enter_context(folder))))
            stack.callback(planes[-1].stop)
        list(pool.map(prepare, planes))
        return run_twice([plane.kubeconfig for plane in planes], cases, options)


def prepare(plane: ControlPlane) -> None:
    """Prepare the cluster with what the runner needs in addition to the usual CRDs."""
    plane.start()
    with plane.api() as api:
        for manifest in sorted((PARITY / "runner" / "crds").glob("*.yaml")):
            api.apply_file(manifest)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
