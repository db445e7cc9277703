"""Compares csi-fleet with the recorded cases of the Go sidecars: `make parity`.

The cases and their runner are in tests/parity. Starts a control plane of its own.

Records of a known defect of the reference are not compared (docs/differences.md says what ours does
instead). Several cases wait a fixed time after the start; one that fails beside others on a busy
machine is run once more alone, and only that second result counts. What csi-fleet remembers of
its first run (calls whose end is unknown) is removed before: it would be finished in the second.
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
from pathlib import Path

import yaml

from tests.support.controlplane import ControlPlane
from tests.support.kube_api import KubeApi
from tests.support.spec_ids import CASE_FOLDERS, PARITY
from workers.constants import LABEL_INTENT
from workers.controllers import catalogue

ROOT = Path(__file__).resolve().parents[2]
OPEN = ROOT / "docs" / "parity-open.yaml"
JOBS = 3  # each job is a whole csi-fleet: watcher, worker, beat and Redis


def command_template() -> str:
    """The runner's command line for csi-fleet, with the runner's own placeholders left in."""
    program = Path(sys.executable).with_name("csi-fleet")
    return (
        f"{program} run --controllers={{component}} --kubeconfig={{kubeconfig}} "
        "--csi-address={csi_address} --leader-election=false {flags}"
    )


def runnable(case: Path) -> bool:
    """Whether all sidecars of the case are controllers of ours."""
    content = json.loads(case.read_text())
    parts = [content, *content.get("with", ())]
    known = {spec.name for spec in catalogue.SPECS}
    return all(part.get("component", "provisioner") in known for part in parts)


def run_cases(kubeconfig: Path, cases: list[Path], options: argparse.Namespace) -> set[str]:
    """Run the runner over `cases`, pass its output on and return the ids that were ok.

    Raises:
        subprocess.CalledProcessError: the runner itself broke (neither passed nor failed cases).
    """
    command = [
        *(sys.executable, "-u", str(PARITY / "runner" / "run.py"), "compare"),
        *map(str, cases),
        *("--kubeconfig", str(kubeconfig), "--jobs", str(options.jobs)),
        *("--cluster-has", "CrossNamespaceVolumeDataSource", "--skip-defects"),
        *("--command", command_template()),
        *(("--logs", str(options.logs)) if options.logs else ()),
        *(("--max-diffs", str(options.max_diffs)) if options.max_diffs else ()),
    ]
    env = os.environ | {"CSI_PROTO": str(ROOT / "csi_client" / "proto" / "csi.proto")}
    env.pop("KUBECONFIG", None)  # it would win over --kubeconfig
    passed = set()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        try:
            for line in runner.stdout:
                print(line, end="", flush=True)
                if match := re.match(r"ok +(\S+)", line):
                    passed.add(match.group(1))
        except KeyboardInterrupt:
            runner.send_signal(signal.SIGINT)  # it stops its provisioners, then ends
            raise
    if runner.returncode not in {0, 1}:
        raise subprocess.CalledProcessError(runner.returncode, command[:4])
    return passed


def main(arguments: list[str] | None = None) -> int:
    """Select the cases, run them, judge; returns the exit code."""
    parser = argparse.ArgumentParser(prog="parity", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="regular expression over case ids")
    parser.add_argument("--folder", default="", help="regular expression over the case folders")
    parser.add_argument("--jobs", type=int, default=JOBS, help="cases side by side")
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
    open_cases = yaml.safe_load(OPEN.read_text())
    unequal = [case.stem for case in cases if case.stem not in passed]
    known = [name for name in unequal if name in open_cases]
    failed = [name for name in unequal if name not in open_cases]
    if known:
        print(f"not equal yet ({OPEN.relative_to(ROOT)}): {' '.join(known)}")
    if failed:
        print(f"failed: {' '.join(failed)}")
    print(f"{len(passed)} passed, {len(failed)} failed", flush=True)
    return 1 if failed else 0


def is_defect(case: Path) -> bool:
    """True if the whole record shows a known defect of the reference."""
    content = json.loads(case.read_text())
    return "reference_defect" in content and "defect_parts" not in content


def forget_attempts(kubeconfig: Path, drivers: set[str]) -> None:
    """Remove the ConfigMaps of unfinished attempts for these drivers."""
    with KubeApi(kubeconfig) as api:
        for found in api.items("/api/v1/configmaps", labelSelector=LABEL_INTENT):
            if any(f"|{driver}|" in str(found.get("data")) for driver in drivers):
                meta = found["metadata"]
                api.delete(f"/api/v1/namespaces/{meta['namespace']}/configmaps/{meta['name']}")


def run_twice(kubeconfig: Path, cases: list[Path], options: argparse.Namespace) -> set[str]:
    """Run the cases, then those that failed once more, one at a time."""
    passed = run_cases(kubeconfig, cases, options)
    again = [case for case in cases if case.stem not in passed]
    if not again or options.jobs == 1:
        return passed
    print(f"once more, alone: {' '.join(case.stem for case in again)}", flush=True)
    contents = [json.loads(case.read_text()) for case in again]
    forget_attempts(kubeconfig, {one["driver"]["name"] for one in contents if "driver" in one})
    alone = argparse.Namespace(**{**vars(options), "jobs": 1})
    return passed | run_cases(kubeconfig, again, alone)


def run_on_cluster(cases: list[Path], options: argparse.Namespace) -> set[str]:
    """Run on the given cluster, or on one started for it."""
    if options.kubeconfig:
        return run_twice(options.kubeconfig, cases, options)
    with tempfile.TemporaryDirectory(prefix="csi-fleet-parity-") as scratch:
        plane = ControlPlane(Path(scratch))
        try:
            plane.start()
            with plane.api() as api:
                for manifest in sorted((PARITY / "runner" / "crds").glob("*.yaml")):
                    api.apply_file(manifest)
            return run_twice(plane.kubeconfig, cases, options)
        finally:
            plane.stop()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
