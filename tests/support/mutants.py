"""Would the tests notice? Breaks the code at random places, one at a time, and runs the tests.

`make mutants` (COUNT=n SEED=n ONLY=regex JOBS=n), outside of CI: it takes hours. Each mutant lives
in a copy of the checkout; the suites of the touched package run, the nearest tests first, until
one fails. A survivor is a line that no test minds: give it a test, or take it out.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
# Code -> the tests that must notice, the quickest first.
SUITES = {
    "workers/queue/": ("tests/unit/queue", "tests/integration/queue"),
    "workers/engine/": ("tests/unit/engine", "tests/unit/controllers/provisioner"),
    "workers/controllers/": ("tests/unit/controllers/{name}", "tests/unit/controllers"),
    "watcher/": ("tests/unit/watcher", "tests/unit/controllers"),
    "csi_client/": ("tests/unit/csi_client", "tests/integration/csi_client"),
}
LIMIT_SECONDS = 600
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}
LUA_SWAPS = (
    *((" == ", " ~= "), (" ~= ", " == "), (" < ", " <= "), (" <= ", " < ")),
    *((" > ", " >= "), (" >= ", " > "), (" and ", " or "), (" or ", " and ")),
    *((" + ", " - "), (" - ", " + "), ("not ", ""), ("'PX'", "'EX'")),
)


@dataclass(frozen=True)
class Mutant:
    """One broken line."""

    path: str
    line: int
    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.what}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of one file; `text` is the whole file with the change."""
    name = str(path.relative_to(ROOT))
    if path.suffix == ".lua":
        yield from _of_lua(name, path.read_text(encoding="utf-8"))
    else:
        yield from _of_python(name, path.read_text(encoding="utf-8"))


def _of_lua(name: str, text: str) -> Iterator[Mutant]:
    lines = text.splitlines()
    for number, line in enumerate(lines):
        code = line.partition("--")[0]
        for old, new in LUA_SWAPS:
            for match in re.finditer(re.escape(old), code):
                changed = line[: match.start()] + new + line[match.end() :]
                whole = "\n".join([*lines[:number], changed, *lines[number + 1 :]]) + "\n"
                yield Mutant(name, number + 1, f"{old.strip()} -> {new.strip()}", whole)
        if re.match(r"\s*redis\.call\(.*\)$", code):
            whole = "\n".join([*lines[:number], *lines[number + 1 :]]) + "\n"
            yield Mutant(name, number + 1, "without the call", whole)


def _of_python(name: str, text: str) -> Iterator[Mutant]:
    count = sum(1 for _ in ast.walk(ast.parse(text)))
    yield from filter(None, (_mutant(name, text, index) for index in range(count)))


def _mutant(name: str, text: str, index: int) -> Mutant | None:
    """The file with its n-th node broken; None where there is nothing to break."""
    tree = ast.parse(text)
    node = next(one for place, one in enumerate(ast.walk(tree)) if place == index)
    what = _change(node)
    return Mutant(name, getattr(node, "lineno", 0), what, ast.unparse(tree)) if what else None


def _change(node: ast.AST) -> str:
    """Break one node in place; says how, "" where there is nothing to break."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        old = node.ops[0]
        node.ops[0] = SWAPS[type(old)]()  # type: ignore[call-overload]
        return f"{type(old).__name__} -> {type(node.ops[0]).__name__}"
    if isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in SWAPS:
        old_op = node.op
        node.op = SWAPS[type(old_op)]()  # type: ignore[assignment]
        return f"{type(old_op).__name__} -> {type(node.op).__name__}"
    if isinstance(node, ast.If):
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return "if -> if not"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
        return f"{not node.value} -> {node.value}"
    if isinstance(node, ast.FunctionDef) and len(node.body) > 1:
        return _without_statement(node)
    return ""


def _without_statement(node: ast.FunctionDef) -> str:
    """Leave out the last call that a function makes for its effect."""
    for place in range(len(node.body) - 1, -1, -1):
        statement = node.body[place]
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            gone = ast.unparse(statement)
            node.body[place] = ast.Pass()
            return f"without {gone[:60]}"
    return ""


def one_of(path: Path, chance: random.Random) -> Mutant | None:
    """One mutant of a file at random, without making all of them."""
    if path.suffix == ".lua":
        return chance.choice(list(mutants_of(path)) or [None])
    name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    order = list(range(sum(1 for _ in ast.walk(ast.parse(text)))))
    chance.shuffle(order)
    return next(filter(None, (_mutant(name, text, index) for index in order)), None)


def choose(count: int, seed: int, only: str) -> list[Mutant]:
    """`count` mutants at random, files by their size."""
    chance = random.Random(seed)
    files = [
        path
        for folder in SUITES
        for suffix in ("*.py", "*.lua")
        for path in sorted((ROOT / folder).rglob(suffix))
        if "_generated" not in path.parts and re.search(only, str(path.relative_to(ROOT)))
    ]
    weights = [path.stat().st_size for path in files]
    found: dict[str, Mutant] = {}
    while len(found) < count:
        path = chance.choices(files, weights)[0]
        mutant = one_of(path, chance)
        if mutant is not None:
            found[str(mutant)] = mutant
    return list(found.values())


def suites_for(path: str) -> list[str]:
    """Test folders of a source file that exist."""
    name = path.split("/")[2] if path.startswith("workers/controllers/") else ""
    suites = next(suites for folder, suites in SUITES.items() if path.startswith(folder))
    folders = [suite.format(name=name.removesuffix(".py")) for suite in suites]
    return [folder for folder in folders if (ROOT / folder).is_dir()]


def is_killed(mutant: Mutant, tree: Path) -> bool:
    """Run the tests in a copy with the mutant; restores the copy."""
    place = tree / mutant.path
    before = place.read_text(encoding="utf-8")
    place.write_text(mutant.text, encoding="utf-8")
    options = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header")
    try:
        for folder in suites_for(mutant.path):
            command = [sys.executable, "-m", "pytest", *options, folder]
            done = subprocess.run(
                command, cwd=tree, capture_output=True, timeout=LIMIT_SECONDS, check=False
            )
            if done.returncode != 0:
                return True
    except subprocess.TimeoutExpired:
        return True
    finally:
        place.write_text(before, encoding="utf-8")
    return False


def copy_tree(place: Path) -> Path:
    """The committed files of this checkout."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / name)
    return place


def main() -> int:
    """Choose, run, tell; 1 if less than nine tenths were killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="regular expression over paths")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    mutants = choose(options.count, options.seed, options.only)
    survived: list[Mutant] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.jobs):
            trees.put(copy_tree(Path(scratch, str(number))))

        def judge(mutant: Mutant) -> None:
            tree = trees.get()
            try:
                killed = is_killed(mutant, tree)
            finally:
                trees.put(tree)
            if not killed:
                survived.append(mutant)
            print("killed  " if killed else "SURVIVED", mutant, flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(judge, mutants))
    share = 1 - len(survived) / len(mutants)
    print(f"{len(mutants)} mutants, {share:.0%} killed; survivors: {len(survived)}")
    return 0 if share >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
