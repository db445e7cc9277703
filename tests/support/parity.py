"""Compares csi-fleet with the recorded cases of the Go csi-provisioner: `make parity`.

The cases and their runner live beside this checkout, in `../shared/parity`; where they are absent
nothing is run (an error in CI). Starts a control plane of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.controlplane import ControlPlane

ROOT = Path(__file__).resolve().parents[2]
PARITY = ROOT.parent / "shared" / "parity"
PENDING = ROOT / "tests" / "parity" / "pending.txt"
JOBS = 3  # each job is a whole csi-fleet: watcher, worker, beat and Redis


def command_template() -> str:
    """The runner's command line for csi-fleet, with the runner's own placeholders left in."""
    program = Path(sys.executable).with_name("csi-fleet")
    return (
        f"{program} run --kubeconfig={{kubeconfig}} --csi-address={{csi_address}} "
        "--leader-election=false {flags}"
    )


def pending_cases() -> frozenset[str]:
    """Ids in `pending.txt`."""
    lines = (line.partition("#")[0].strip() for line in PENDING.read_text().splitlines())
    return frozenset(line for line in lines if line)


def run_cases(kubeconfig: Path, cases: list[Path], options: argparse.Namespace) -> set[str]:
    """Run the runner over `cases`, pass its output on and return the ids that were ok.

    Raises:
        subprocess.CalledProcessError: the runner itself broke (neither passed nor failed cases).
    """
    command = [
        *(sys.executable, "-u", str(PARITY / "runner" / "run.py"), "compare"),
        *map(str, cases),
        *("--kubeconfig", str(kubeconfig), "--jobs", str(options.jobs)),
        *("--cluster-has", "CrossNamespaceVolumeDataSource"),
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
    parser.add_argument("--jobs", type=int, default=JOBS, help="cases side by side")
    parser.add_argument("--logs", type=Path, help="folder for csi-fleet's output, a file a case")
    parser.add_argument("--max-diffs", type=int, help="lines of difference shown per case")
    parser.add_argument("--kubeconfig", type=Path, help="use this cluster, start none")
    parser.add_argument("--leave-out-pending", action="store_true", help=f"see {PENDING.name}")
    options = parser.parse_args(arguments)
    if not PARITY.is_dir():
        print("parity: the recorded cases (../shared/parity) are not in this checkout; none run")
        return 1 if os.environ.get("CI") == "true" else 0
    pending = pending_cases()
    cases = sorted((PARITY / "cases").glob("*.json"))
    unknown = pending - {case.stem for case in cases}
    if unknown:
        print(f"{PENDING.name} names no case: {' '.join(sorted(unknown))}")
        return 1
    cases = [case for case in cases if re.search(options.only, case.stem)]
    if options.leave_out_pending:
        cases = [case for case in cases if case.stem not in pending]
        print(f"{len(cases)} cases, {len(pending)} pending ones left out ({PENDING.name})")
    if not cases:
        print("no such case")
        return 1
    passed = run_on_cluster(cases, options)
    surprising = sorted(passed & pending)
    if surprising:
        print(f"no longer pending, remove from {PENDING.name}: {' '.join(surprising)}")
    return 0 if {case.stem for case in cases} <= passed | pending else 1


def run_on_cluster(cases: list[Path], options: argparse.Namespace) -> set[str]:
    """Run on the given cluster, or on one started for it."""
    if options.kubeconfig:
        return run_cases(options.kubeconfig, cases, options)
    with tempfile.TemporaryDirectory(prefix="csi-fleet-parity-") as scratch:
        plane = ControlPlane(Path(scratch))
        try:
            plane.start()
            with plane.api() as api:
                for manifest in sorted((PARITY / "runner" / "crds").glob("*.yaml")):
                    api.apply_file(manifest)
            return run_cases(plane.kubeconfig, cases, options)
        finally:
            plane.stop()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
