"""Record golden cases from a sidecar, or compare a sidecar with recorded cases. See README.md."""

import argparse
import concurrent.futures
import contextlib
import json
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

from beside import Beside
from case_run import CaseRun, alone, components, is_for_all
from compare import differences
from kube import Kube


def whole_case_is_defect(case):
    """Return True if the whole record shows a defect of the Go sidecar."""
    return "reference_defect" in case and "defect_parts" not in case


def parser():
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(description=__doc__)
    add = found.add_argument
    add("mode", choices=["record", "compare"])
    add("cases", nargs="+", help="case files or folders")
    add("--kubeconfig", required=True)
    add(
        "--command",
        help="template with {kubeconfig} {csi_address} {flags}, {component}, {case}, {work}",
    )
    add(
        "--command-for",
        action="append",
        default=[],
        metavar="COMPONENT=TEMPLATE",
        help="for that component instead of --command",
    )
    add("--shadow", help="template of a shadow beside the component, with {state} too")
    add("--shadow-report", help="template of the command that tells what it found, as JSON")
    add("--shadow-kubeconfig", help="who the shadow is")
    add(
        "--up",
        action="append",
        default=[],
        metavar="PART",
        help="a case's waits begin when the command has made the file */PART/*.ready in its TMPDIR",
    )
    add("--only", default="", help="regular expression over case ids")
    add("--only-component", action="append", default=[], help="only its cases (repeatable)")
    add("--jobs", type=int, default=4)
    add("--logs")
    add("--out", help="folder for actual results; record: default is into the case files")
    add("--ignore", action="append", default=[], help="part of the record to leave out: events")
    add(
        "--cluster-has",
        action="append",
        default=[],
        help="API server feature gate that cases with `requires` need",
    )
    add(
        "--skip-defects",
        action="store_true",
        help="do not compare what records a defect of the reference (a case or its defect_parts)",
    )
    add("--components", action="store_true", help="compare event source components too")
    add("--max-diffs", type=int, default=12)
    return found


class Turns:
    """Chooses the next case, so that one of the mutually exclusive cases always runs."""

    def __init__(self, files, exclusive):
        self.guard, self.is_busy = threading.Lock(), False
        self.exclusive = [f for f in files if f in exclusive]
        self.others = [f for f in files if f not in exclusive]

    @contextlib.contextmanager
    def next(self):
        with self.guard:
            mine = bool(self.exclusive) and not self.is_busy
            path = (self.exclusive if mine or not self.others else self.others).pop(0)
            self.is_busy |= mine
        try:
            yield path
        finally:
            with self.guard:
                self.is_busy &= not mine


class Run:
    """One run of the chosen cases."""

    def __init__(self, args):
        self.args = args
        self.commands = dict(c.split("=", 1) for c in args.command_for)
        if args.command:
            self.commands["*"] = args.command
        self.logs = args.logs or tempfile.mkdtemp(prefix="golden-logs-")
        for folder in filter(None, (self.logs, args.out)):
            Path(folder).mkdir(parents=True, exist_ok=True)
        self.cases = self.wanted()
        self.lacking = [
            f
            for f, c in self.cases.items()
            if c.get("requires") and c["requires"] not in args.cluster_has
        ]
        self.without = [
            f
            for f, c in self.cases.items()
            if "*" not in self.commands
            and not all(p["component"] in self.commands for p in components(c))
        ]
        self.files = [
            f
            for f, case in self.cases.items()
            if f not in self.lacking + self.without
            and not (args.skip_defects and whole_case_is_defect(case))
        ]
        self.passed, self.failed = 0, []

    def wanted(self):
        """Return the cases by file that --only and --only-component choose."""
        files = []
        for path in map(Path, self.args.cases):
            files += sorted(path.glob("*.json")) if path.is_dir() else [path]
        found = {f: json.loads(f.read_text()) for f in files if re.search(self.args.only, f.stem)}
        only = self.args.only_component
        return {
            f: case
            for f, case in found.items()
            if not only or case.get("component", "provisioner") in only
        }

    def results(self):
        """Yield each case's file, its result or exception, and the seconds it took.

        The first cases are those whose objects a component without a driver would handle. The rest
        follows, and of these the cases with such a component run one after another.
        """
        kube = Kube(self.args.kubeconfig)
        kube.start_watches()

        def one(turns):
            with turns.next() as path:
                started = time.time()
                case = self.cases[path]
                try:
                    result = self.case_run(kube, case).run()
                except Exception as error:  # noqa: BLE001 - the others go on
                    result = error
            return path, result, time.time() - started

        first = []
        if any(map(alone, self.cases.values())):
            first = [
                f for f in self.files if is_for_all(self.cases[f]) and not alone(self.cases[f])
            ]
        rest = [f for f in self.files if f not in first]
        for group in (first, rest):
            turns = Turns(group, {f for f in group if alone(self.cases[f])})
            with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
                waiting = [pool.submit(one, turns) for _ in group]
                for done in concurrent.futures.as_completed(waiting):
                    yield done.result()

    def case_run(self, kube, case):
        """Return the run of one case."""
        args, beside = self.args, None
        if args.shadow:
            beside = Beside(args.shadow, args.shadow_report, args.shadow_kubeconfig)
        return CaseRun(kube, case, self.commands, args.kubeconfig, self.logs, beside, args.up)

    def all(self):
        """Run all cases and return the exit code."""
        for path, result, took in self.results():
            if isinstance(result, Exception):
                self.failed.append(path.stem)
                print(f"ERROR {path.stem}: {result!r}", flush=True)
                continue
            told = result.pop("shadow", None)
            self.keep(path, result, told)
            if self.args.mode == "record":
                self.passed += 1
                problems = f"  PROBLEMS {result['problems']}" if "problems" in result else ""
                print(f"recorded {path.stem} {took:.1f}s{problems}", flush=True)
            else:
                self.judge(path, result, took)
        for reason, left_out in (
            ("the cluster lacks what they require", self.lacking),
            ("no command for their component", self.without),
        ):
            if left_out:
                print(f"{len(left_out)} left out, {reason}: {' '.join(f.stem for f in left_out)}")
        print(f"{self.passed} passed, {len(self.failed)} failed")
        return 1 if self.failed else 0

    def keep(self, path, result, told=None):
        """Write the result to its place. `told` is the result of a shadow."""
        out = Path(self.args.out, path.name) if self.args.out else None
        if out is None and self.args.mode == "record":
            out = path
        if out is not None:
            case = {**self.cases[path], "recorded": result}
            if told is not None:
                case |= {"shadow": told, "unlike": self.unlike(path, result)}
            out.write_text(json.dumps(case, indent=1, ensure_ascii=False) + "\n")

    def unlike(self, path, result):
        """Return the differences from the record."""
        case, args = self.cases[path], self.args
        leave = args.ignore + (case.get("defect_parts", []) if args.skip_defects else [])
        return differences(case, result, ignore=leave, components=args.components)

    def judge(self, path, result, took):
        """Compare with the record and print the differences."""
        case, args = self.cases[path], self.args
        found = self.unlike(path, result)
        if not found:
            self.passed += 1
            print(f"ok   {path.stem} {took:.1f}s", flush=True)
            return
        self.failed.append(path.stem)
        print(f"FAIL {path.stem}: {case['title']}  [{', '.join(case['spec_refs'])}]", flush=True)
        for line in found[: args.max_diffs]:
            print("   " + line)
        if len(found) > args.max_diffs:
            print(f"   ... {len(found) - args.max_diffs} more")


if __name__ == "__main__":
    sys.exit(Run(parser().parse_args()).all())
