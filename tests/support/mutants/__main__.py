"""Breaks the code at random places, one at a time, and checks that the tests notice it.

`make mutants` (COUNT=n SEED=n ONLY=regex JOBS=n AGAIN=file); not part of CI, because 300 mutants
take most of an hour on one core. A traced run records which tests run which line. Each mutant is
then put into a copy of the checkout and runs against these tests, and against the suites of its
package if no test fails. A survivor is a line that no test checks: write a test for it, remove the
line, or explain why the mutant is equivalent.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from tests.support.mutants.breaking import ROOT, Mutant, choose, mutants_of
from tests.support.mutants.noticing import SUITES, Copy, killed_by, nearest_to, suites_for

ENOUGH = 0.9


def files(only: str) -> list[Path]:
    """Return the files that can be broken; `only` is a regular expression for their paths."""
    return [
        path
        for folder in SUITES
        for suffix in ("*.py", "*.lua")
        for path in sorted((ROOT / folder).rglob(suffix))
        if "_generated" not in path.parts and re.search(only, str(path.relative_to(ROOT)))
    ]


def survivors_in(report: Path) -> list[Mutant]:
    """Return the survivors that an earlier run has printed, if their lines still exist."""
    text = report.read_text(encoding="utf-8")
    names = re.findall(r"^SURVIVED (.+?)(?: \| .*)?$", text, re.MULTILINE)
    paths = {ROOT / name.partition(":")[0] for name in names}
    found = {str(mutant): mutant for path in sorted(paths) for mutant in mutants_of(path)}
    return [found[name] for name in names if name in found]


def copy_tree(folder: Path) -> Copy:
    """Copy the committed files of this checkout."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return Copy(folder)


class Judge:
    """Runs tests on mutants, in as many copies of the checkout as there are jobs."""

    def __init__(self, jobs: int, scratch: Path) -> None:
        self.jobs = jobs
        self.copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(jobs):
            self.copies.put(copy_tree(scratch / str(number)))
        first = self.copies.get()
        self.known = first.trace(scratch / "trace.json")
        self.copies.put(first)
        tell(f"{len(self.known.seconds)} tests traced; left out: {self.known.failing}")

    def survivors(self, mutants: list[Mutant]) -> list[Mutant]:
        """Run the nearest tests on each mutant first, then whole suites on the survivors."""
        for tests, word in ((self._nearest, "left    "), (self._suites, "SURVIVED")):
            with ThreadPoolExecutor(self.jobs) as pool:
                killers = list(pool.map(partial(self._judge, tests, word), mutants))
            pairs = zip(mutants, killers, strict=True)
            mutants = [mutant for mutant, killer in pairs if not killer]
        return mutants

    def _nearest(self, mutant: Mutant) -> list[list[str]]:
        return nearest_to(mutant, self.known)

    def _suites(self, mutant: Mutant) -> list[list[str]]:
        return [[suite] for suite in suites_for(mutant.path)]

    def _judge(self, tests: Callable[[Mutant], list[list[str]]], word: str, mutant: Mutant) -> str:
        copy = self.copies.get()
        try:
            killer = killed_by(mutant, tests(mutant), copy, self.known)
        finally:
            self.copies.put(copy)
        source = (ROOT / mutant.path).read_text(encoding="utf-8").splitlines()
        line = source[mutant.line - 1].strip()
        tell(f"killed   {mutant} | by {killer}" if killer else f"{word} {mutant} | {line}")
        return killer


def tell(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def main() -> int:
    """Choose mutants, run them and print the result; return 1 if less than nine tenths were
    killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="regular expression over paths")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", type=Path, help="output of an earlier run: its survivors")
    options = parser.parse_args()
    mutants = (
        survivors_in(options.again)
        if options.again
        else choose(files(options.only), options.count, options.seed)
    )
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        survived = Judge(options.jobs, Path(scratch)).survivors(mutants)
    lived = Counter(_folder(mutant) for mutant in survived)
    for folder, number in sorted(Counter(map(_folder, mutants)).items()):
        print(f"{folder:22} {number - lived[folder]:4} of {number:4} killed")
    share = 1 - len(survived) / len(mutants) if mutants else 1.0
    print(f"{len(mutants)} mutants, {share:.1%} killed; survivors: {len(survived)}")
    return 0 if share >= ENOUGH else 1


def _folder(mutant: Mutant) -> str:
    return next(folder for folder in SUITES if mutant.path.startswith(folder))


if __name__ == "__main__":
    sys.exit(main())
