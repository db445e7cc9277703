"""Finds the tests that must notice a broken line, and runs them.

First it runs the tests that run the line according to a traced run, the quickest first, and then
the whole suites of the package. A run that hangs counts only if the same tests pass on the
unchanged code in a third of the time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Self

from tests.support.mutants.breaking import ROOT, Mutant

# Maps code to the suites that must notice a change.
SUITES = {
    "workers/queue/": ("tests/unit/queue", "tests/integration/queue"),
    "workers/engine/": (
        "tests/unit/engine",
        "tests/unit/controllers",
        "tests/integration/test_messages.py",
        "tests/integration/test_beat.py",
    ),
    "workers/controllers/": ("tests/unit/controllers", "tests/integration/controllers"),
    "watcher/": ("tests/unit/watcher", "tests/unit/controllers", "tests/integration/watcher"),
    "csi_client/": ("tests/unit/csi_client", "tests/integration/csi_client"),
}
# The suites that are traced, and run in this order.
UNIT = "tests/unit/"
TRACED = (
    UNIT,
    "tests/integration/queue/",
    "tests/integration/csi_client/",
    "tests/integration/drivers/",
    "tests/integration/controllers/",
    "tests/integration/watcher/",  # a control plane has to start
)
OPTIONS = (
    *("-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly"),
    *("--no-header", "--tb=no", "--timeout=120"),
)
PASSED, NO_TESTS = 0, 5  # exit codes of pytest
NEAREST_SECONDS = 15.0
LIMIT_SECONDS = 300.0
SUITE_LIMIT_SECONDS = 1800.0
# A run that took longer may have failed because of a time limit.
SLOW_SECONDS = 60.0
TRACING_LIMIT_SECONDS = 3600.0


@dataclass
class Known:
    """The result of the traced run."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    # Tests that fail on the unchanged code in a copy, for example because they need git; they are
    # left out.
    failing: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Self:
        found = json.loads(path.read_text(encoding="utf-8"))
        names = [name for name, _ in found["tests"]]
        lines = {place: [names[one] for one in tests] for place, tests in found["lines"].items()}
        return cls(dict(found["tests"]), lines, found["failed"])

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that run a mutant's line, the quickest first.

        If there are many, only some are returned, because the suites contain the rest.
        """
        found: set[str] = set()
        for place in self._places(mutant):
            found |= set(self.lines.get(place, ())) - set(self.failing)
            if found and not mutant.path.endswith(".lua"):
                break
        quickest = sorted(found, key=lambda test: self.seconds[test])
        spent = accumulate(self.seconds[test] for test in quickest)
        return [test for test, sum_ in zip(quickest, spent, strict=True) if sum_ < NEAREST_SECONDS]

    def _places(self, mutant: Mutant) -> list[str]:
        if not mutant.path.endswith(".lua"):
            return [f"{mutant.path}:{mutant.line}", f"{mutant.path}:{mutant.scope}"]
        folder = Path(mutant.path).parent
        if not Path(mutant.path).stem.startswith("lib"):
            return [mutant.path]
        # A shared function: the scripts that call it, directly or indirectly.
        named = re.compile(
            rf"\b({'|'.join(_ways_to(str(mutant.scope or 'now'), ROOT / folder))})\("
        )
        scripts = (ROOT / folder).glob("*.lua")
        return [str(folder / one.name) for one in scripts if named.search(one.read_text("utf-8"))]


def _ways_to(name: str, folder: Path) -> set[str]:
    """Return a function of the scripts' library, and all functions that call it directly or
    indirectly."""
    text = "\n".join(one.read_text("utf-8") for one in folder.glob("lib*.lua"))
    parts = re.split(r"^local function (\w+)", text, flags=re.MULTILINE)[1:]
    bodies = dict(zip(parts[::2], parts[1::2], strict=True))
    found, fresh = {name}, {name}
    while fresh:
        calls = re.compile(rf"\b({'|'.join(fresh)})\(")
        fresh = {one for one, body in bodies.items() if calls.search(body)} - found
        found |= fresh
    return found


@dataclass(frozen=True)
class Copy:
    """A copy of the checkout, in which one file at a time is broken."""

    folder: Path

    def put(self, path: str, text: str) -> None:
        """Write a file of the copy and remove its compiled form."""
        place = self.folder / path
        place.write_text(text, encoding="utf-8")
        Path(importlib.util.cache_from_source(str(place))).unlink(missing_ok=True)

    def restore(self, path: str) -> None:
        """Restore the unchanged file."""
        self.put(path, (ROOT / path).read_text(encoding="utf-8"))

    def run(
        self, tests: Sequence[str], limit: float, *options: str, trace: Path | None = None
    ) -> tuple[int | None, str]:
        """Run pytest once; return its exit code (None for a timeout) and output."""
        environment = os.environ | {"PYTHONPATH": str(self.folder)}
        # Without the compiled files, pytest would take seconds longer to start.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if trace is not None:
            environment["MUTANTS_TRACE"] = str(trace)
        command = [sys.executable, "-m", "pytest", *OPTIONS, *options, *tests]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, text=True,
                timeout=limit, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None, ""
        return done.returncode, done.stdout

    def trace(self, out: Path) -> Known:
        """Run all tests once on the unchanged code."""
        plugin = ("-p", "tests.support.mutants.tracing", "--maxfail=10000")
        self.run(TRACED, TRACING_LIMIT_SECONDS, *plugin, trace=out)
        known = Known.read(out)
        # Some tests fail only because tracing is slow.
        known.failing = [
            test for test in known.failing if self.run([test], LIMIT_SECONDS)[0] != PASSED
        ]
        return known


def suites_for(path: str) -> list[str]:
    """Return the existing tests of a source file's package."""
    suites = next(suites for folder, suites in SUITES.items() if path.startswith(folder))
    return [suite for suite in suites if (ROOT / suite).exists()]


def nearest_to(mutant: Mutant, known: Known) -> list[list[str]]:
    """Return the tests that run a mutant's line, as a list for each folder of `TRACED`."""
    tests = known.tests_of(mutant)
    return [[test for test in tests if test.startswith(folder)] for folder in TRACED]


def killed_by(mutant: Mutant, selections: Sequence[Sequence[str]], copy: Copy, known: Known) -> str:
    """Return the test that notices the mutant, or "" if it survives; restore the copy."""
    copy.put(mutant.path, mutant.text)
    try:
        for tests in filter(None, selections):
            if killer := _noticed(mutant, copy, tests, known):
                return killer
            copy.put(mutant.path, mutant.text)
    finally:
        copy.restore(mutant.path)
    return ""


def _noticed(mutant: Mutant, copy: Copy, tests: Sequence[str], known: Known) -> str:
    is_suite = tests[0] not in known.seconds
    limit = SUITE_LIMIT_SECONDS if is_suite else LIMIT_SECONDS
    left_out = [f"--deselect={test}" for test in known.failing] if is_suite else []
    started = time.monotonic()
    code, output = copy.run(tests, limit, *left_out)
    is_slow = time.monotonic() - started > SLOW_SECONDS
    if code in {PASSED, NO_TESTS}:
        return ""
    if code is None:
        return "hangs" if _is_quick_when_sound(mutant, copy, tests, limit, left_out) else ""
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    killer = failed[0] if failed else f"pytest's exit code {code}"
    if failed and (is_slow or not killer.startswith(UNIT)):
        # Processes and sockets may fail by chance.
        copy.restore(mutant.path)
        if copy.run([killer], LIMIT_SECONDS)[0] != PASSED:
            print("fails on sound code too:", killer, flush=True)
            return ""
    return killer


def _is_quick_when_sound(
    mutant: Mutant, copy: Copy, tests: Sequence[str], limit: float, left_out: list[str]
) -> bool:
    copy.restore(mutant.path)
    started = time.monotonic()
    code, _ = copy.run(tests, limit, *left_out)
    return code == PASSED and time.monotonic() - started < limit / 3
