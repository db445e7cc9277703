"""Runs test suites and ends with one summary line: `make test` and `make test-all`.

`python -m tests.support.suites unit integration e2e node monitoring chaos parity` runs these
suites; `python -m tests.support.suites --quick` runs a selection.

`--quick` runs the tests that need neither root nor Go and takes seven to ten minutes on two cores:
unit and integration tests, and those parts of e2e and parity that together cover every controller.
Each suite is its own pytest run: unit tests share the cores with files of integration and e2e
tests. Suites that mostly wait run at the same time. A failed suite does not prevent the next one
from running. In suites with many real processes, a few failed tests are tried once more; a test
that passes then counts as passed and is listed as flaky, to be investigated. Tests that failed last
time run first. The heading of each suite shows how long the rest took last time. Before the table,
each failed and flaky test is listed with its error, because the logs of a CI may be cut. The last
line is `tests: N passed, N failed`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from tests.support.controlplane_binaries import cache_root
from tests.support.processes import start_process

ROOT = Path(__file__).resolve().parents[2]
TESTS_FAILED, NO_TESTS_COLLECTED = 1, 5  # pytest's exit codes
CORES = max(2, len(os.sched_getaffinity(0)))
# pytest-xdist processes. Files mostly wait; each process has its own Redis and control plane.
BY_FILE = ("-n", str(2 * CORES), "--dist", "loadfile")
WORKERS = {"unit": ("-n", str(CORES)), "integration": BY_FILE, "e2e": BY_FILE}
QUICK = ("unit", "integration", "parity")
# `--quick` runs these files together with the integration tests, since both mostly wait ...
QUICK_BESIDE = {
    "integration": (
        "e2e/test_claims.py", "e2e/test_resizing.py", "e2e/test_snapshots.py",
        "e2e/test_attaching.py",
    ),
}  # fmt: skip
# ... and omits tests that install Debian packages, need programs in Go, change their user, fuzz, or
# wait for roll-outs.
NOT_QUICK = {
    "unit": ("cli/test_kubectl.py", "support/test_wallclock.py"),
    "integration": (
        "csi_client/test_gateway.py", "examples/test_nfs_csi_driver.py", "queue/test_clock.py",
        "test_adopt.py", "test_adopt_central.py", "test_alerts.py", "test_chart.py",
        "test_manifests.py", "test_message_fuzz.py", "test_redis_sentinel.py",
    ),
}  # fmt: skip
QUICK_CASES = "(basic|del|mode|rsz|snp|sns|snc|att)-[0-9]*[0369]1"  # of each controller
TOOK = ROOT / ".pytest_cache" / "suites.json"  # seconds that each suite took the last time
TRIED_AGAIN = {"integration", "e2e", "node", "monitoring", "chaos"}
MOST_TRIED_AGAIN = 3  # more failures than this are no accident
LONGEST_ERROR = 1_500  # characters
FOLDERS = ("unit", "integration", "e2e", "node", "monitoring", "chaos")
# Each of these suites leaves two thirds of two cores idle.
SIDE_BY_SIDE = ("node", "monitoring", "chaos")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one suite; `ok` is determined by its exit code, not only by the counts."""

    suite: str
    ok: bool
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    flaky: int = 0
    seconds: float = 0.0
    errors: tuple[str, ...] = ()  # a test and its error each, from the first try


def run_pytest(suite: str, output: IO[str] | None = None, *, is_quick: bool = False) -> Outcome:
    """Run the suite's folder; a suite without a folder or without tests counts as empty.

    Args:
        suite: its name.
        output: takes what pytest prints, in place of our own output.
        is_quick: run the part of it that belongs to `--quick`.
    """
    folder = ROOT / "tests" / suite
    if not folder.is_dir():
        print(f"no tests/{suite} yet", file=output)
        return Outcome(suite, ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "--failed-first"]
        command += ["-o", f"cache_dir={ROOT}/.pytest_cache/{suite}"]
        command += chosen(folder) if is_quick else [str(folder)]
        if suite in WORKERS:
            command += WORKERS[suite]
        code = subprocess.run(command, cwd=ROOT, check=False, stdout=output).returncode
        passed, failed, skipped = count(report) if report.exists() else (0, 0, 0)
        errors = tuple(failures(report)) if report.exists() else ()
        flaky = 0
        if code == TESTS_FAILED and suite in TRIED_AGAIN and failed <= MOST_TRIED_AGAIN:
            print(f"\n--- {suite}: the failed ones once more ---", file=output, flush=True)
            code = subprocess.run(
                [*command, "-n0", "--last-failed"], cwd=ROOT, check=False, stdout=output
            ).returncode
            good, still_failed, _ = count(report)
            flaky, passed, failed = good, passed + good, still_failed
    ok = code in {0, NO_TESTS_COLLECTED}
    seconds = time.monotonic() - started
    return Outcome(suite, ok, passed, failed or int(not ok), skipped, flaky, seconds, errors)


def chosen(folder: Path) -> list[str]:
    """Return the arguments for pytest that select the part of a suite that belongs to `--quick`."""
    beside = [str(folder.parent / name) for name in QUICK_BESIDE.get(folder.name, ())]
    left_out = [f"--ignore={folder / name}" for name in NOT_QUICK.get(folder.name, ())]
    return [str(folder), *beside, *left_out]


def run_beside(suites: list[str]) -> list[Outcome]:
    """Run suites at the same time; print the output of each when it has ended, and of all after
    the first."""
    with ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in suites]
        pool = stack.enter_context(ThreadPoolExecutor(len(suites)))
        runs = [pool.submit(run_pytest, *one) for one in zip(suites, outputs, strict=True)]
        for suite, output, run in zip(suites, outputs, runs, strict=True):
            wait([run])
            output.seek(0)
            print(f"\n=== {suite} ===", output.read(), sep="\n", flush=True)
    return [run.result() for run in runs]


def prepare_node() -> None:
    """Begin the node's builds; only the node suite waits for them."""
    start_process(
        "node-binaries",
        ["nice", "-n", "19", sys.executable, "-m", "tests.support.node.prepare"],
        log=cache_root() / "node-binaries.log",
        cwd=ROOT,
    )


def count(report: Path) -> tuple[int, int, int]:
    """Return the passed, failed (with errors) and skipped tests of a JUnit report."""
    passed = failed = skipped = 0
    for part in ET.parse(report).getroot().iter("testsuite"):
        bad = int(part.get("failures", 0)) + int(part.get("errors", 0))
        left_out = int(part.get("skipped", 0))
        failed += bad
        skipped += left_out
        passed += int(part.get("tests", 0)) - bad - left_out
    return passed, failed, skipped


def failures(report: Path) -> Iterator[str]:
    """Return each failed test of a JUnit report, with the beginning of its error."""
    for case in ET.parse(report).getroot().iter("testcase"):
        for kind in ("failure", "error"):
            if (found := case.find(kind)) is not None:
                error = found.get("message", "")[:LONGEST_ERROR]
                yield f"{case.get('classname')}::{case.get('name')}: {error}"


def run_parity(*, is_quick: bool = False) -> Outcome:
    """Run the recorded cases; their runner ends with `N passed, N failed`."""
    started = time.monotonic()
    command = [sys.executable, "-u", "-m", "tests.support.parity"]
    with subprocess.Popen(
        [*command, "--only", QUICK_CASES] if is_quick else command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as runner:
        assert runner.stdout is not None
        passed = failed = 0
        for line in runner.stdout:
            print(line, end="", flush=True)
            if match := re.fullmatch(r"(\d+) passed, (\d+) failed", line.strip()):
                passed, failed = map(int, match.groups())
    ok = runner.returncode == 0
    seconds = time.monotonic() - started
    return Outcome("parity", ok, passed, failed or int(not ok), seconds=seconds)


def left(suites: list[str], took: dict[str, float]) -> str:
    """Return the heading's note about the time that these suites took last time."""
    known = [took[suite] for suite in suites if suite in took]
    return f", about {sum(known) / 60:.0f} min left" if len(known) == len(suites) else ""


def read_took() -> dict[str, float]:
    """Return the seconds of each suite in the last run; a quick run is stored under `quick
    NAME`."""
    try:
        return dict(json.loads(TOOK.read_text()))
    except (OSError, ValueError):
        return {}


def main(arguments: list[str]) -> int:
    """Run the named suites; return 0 if all passed."""
    is_quick = arguments == ["--quick"]
    suites = list(QUICK) if is_quick else arguments
    unknown = set(suites) - {*FOLDERS, "parity"}
    if unknown or not suites:
        print(f"suites: {', '.join((*FOLDERS, 'parity'))}; or --quick", file=sys.stderr)
        return 2
    outcomes: list[Outcome] = []
    if "node" in suites:
        prepare_node()
    beside = [suite for suite in suites if suite in SIDE_BY_SIDE]
    prefix, took = "quick " if is_quick else "", read_took()
    for number, suite in enumerate(suites):
        if suite in beside[1:]:
            continue
        rest = left([prefix + one for one in suites[number:] if one not in beside[1:]], took)
        if suite in beside and len(beside) > 1:
            print(f"\n=== {', '.join(beside)}: side by side{rest} ===", flush=True)
            outcomes += run_beside(beside)
            continue
        print(f"\n=== {suite} ({number + 1} of {len(suites)}{rest}) ===", flush=True)
        run = run_parity if suite == "parity" else partial(run_pytest, suite)
        outcomes.append(run(is_quick=True) if is_quick else run())
    took |= {prefix + one.suite: one.seconds for one in outcomes}
    TOOK.parent.mkdir(exist_ok=True)
    TOOK.write_text(json.dumps(took))
    print()
    for one in outcomes:
        for error in one.errors[: 2 * MOST_TRIED_AGAIN]:
            print(f"{'failed once' if one.ok else 'failed'}: {error}\n")
    for one in outcomes:
        state = "ok" if one.ok else "FAILED"
        print(
            f"{one.suite:12} {state:7} {one.passed:5} passed {one.failed:4} failed "
            f"{one.skipped:4} skipped {one.flaky:4} flaky {one.seconds:7.1f} s"
        )
    passed, failed, skipped = (
        sum(getattr(one, field) for one in outcomes) for field in ("passed", "failed", "skipped")
    )
    rest = f", {skipped} skipped" if skipped else ""
    print(f"tests: {passed} passed, {failed} failed{rest}", flush=True)
    return 0 if all(one.ok for one in outcomes) else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
