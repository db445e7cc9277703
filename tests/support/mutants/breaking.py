"""Makes mutants of a file.

A mutant is one small change: an inverted comparison, a negated condition, a different operator or
boolean, an omitted call. Changes without any visible effect are left out: imports for types,
annotations, `frozen` and `slots` of dataclasses, and log output.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
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
LUA_IF = re.compile(r"^(\s*(?:else)?if )(.+)( then\b)")
LUA_CALL = re.compile(r"\s*[a-z_.]+\(.*\)")
# A line that begins like a call may continue a line that ends like this.
LUA_GOES_ON = re.compile(r"(\(|,|=|\{|\.\.|\b(and|or|not|return))\s*$")
LUA_FUNCTION = re.compile(r"local function (\w+)")


@dataclass(frozen=True)
class Mutant:
    """One broken line; `text` is the whole file with the change.

    `scope` is the first line of the innermost function around it (0 for none), or for Lua the
    function's name.
    """

    path: str
    line: int
    what: str
    text: str
    scope: int | str = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column} {self.what}"


def mutants_of(path: Path) -> list[Mutant]:
    """Return every mutant of one file."""
    text = path.read_text(encoding="utf-8")
    return [mutant_at(path, text, place) for place in places(path, text)]


def places(path: Path, text: str) -> list[int]:
    """Return the numbers of the places in a file that can be broken, for `mutant_at`."""
    if path.suffix == ".lua":
        return list(range(len(list(_of_lua("", text)))))
    tree = ast.parse(text)
    hidden = set(_hidden(tree))
    return [
        place
        for place, node in enumerate(list(ast.walk(tree)))
        if id(node) not in hidden and _change(node)
    ]


def mutant_at(path: Path, text: str, place: int) -> Mutant:
    """Return one mutant of a file; `place` is one of `places`."""
    name = str(path.relative_to(ROOT))
    if path.suffix == ".lua":
        return list(_of_lua(name, text))[place]
    tree = ast.parse(text)
    node = list(ast.walk(tree))[place]
    line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
    scope = _scope(tree, node)
    what = _change(node)
    return Mutant(name, line, what, ast.unparse(tree), scope, column)


def choose(files: list[Path], count: int, seed: int) -> list[Mutant]:
    """Return `count` random mutants; each place of all files is equally likely."""
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    every = [(path, place) for path, text in texts.items() for place in places(path, text)]
    chosen = random.Random(seed).sample(every, min(count, len(every)))
    return [mutant_at(path, texts[path], place) for path, place in chosen]


def _hidden(tree: ast.Module) -> Iterator[int]:
    """Yield the ids of nodes whose change has no visible effect."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in {
            "TYPE_CHECKING",
            "__name__ == '__main__'",
        }:
            yield from map(id, ast.walk(node))
        elif isinstance(node, ast.ClassDef):
            for option in (*node.decorator_list, *node.keywords):
                yield from map(id, ast.walk(option))
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield from map(id, ast.walk(node.annotation))
        elif isinstance(node, ast.Expr) and ast.unparse(node).startswith("_log."):
            yield from map(id, ast.walk(node))


def _scope(tree: ast.Module, wanted: ast.AST) -> int:
    """Return the first line of the innermost function around a node, as in its code object."""
    scope = 0
    for node in ast.walk(tree):  # outer functions come first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            inner is wanted for inner in ast.walk(node)
        ):
            scope = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return scope


def _change(node: ast.AST) -> str:
    """Break one node in place; return a description, or "" if the node cannot be broken."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        old = node.ops[0]
        node.ops[0] = SWAPS[type(old)]()  # type: ignore[call-overload]
        return f"{type(old).__name__} -> {type(node.ops[0]).__name__}"
    if isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in SWAPS:
        old_op = node.op
        node.op = SWAPS[type(old_op)]()  # type: ignore[assignment]
        return f"{type(old_op).__name__} -> {type(node.op).__name__}"
    if isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return "if -> if not"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
        return f"{not node.value} -> {node.value}"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        gone = ast.unparse(node)
        node.value = ast.copy_location(ast.Constant(None), node)
        return f"without {' '.join(gone.split())[:60]}"
    return ""


def _of_lua(name: str, text: str) -> Iterator[Mutant]:
    lines = text.splitlines()
    scope = ""
    for number, line in enumerate(lines):
        code = line.partition("--")[0].rstrip()
        if started := LUA_FUNCTION.match(code):
            scope = started[1]
        elif code and not code.startswith((" ", "end")):
            scope = ""
        for column, what, changed in _lua_changes(code, lines[number - 1] if number else ""):
            whole = "\n".join([*lines[:number], changed, *lines[number + 1 :]]) + "\n"
            yield Mutant(name, number + 1, what, whole, scope, column)


def _lua_changes(code: str, before: str) -> Iterator[tuple[int, str, str]]:
    for old, new in LUA_SWAPS:
        for match in re.finditer(re.escape(old), code):
            changed = code[: match.start()] + new + code[match.end() :]
            yield match.start(), f"{old.strip()} -> {new.strip()}", changed
    if condition := LUA_IF.match(code):
        rest = code[condition.end() :]
        yield 0, "if -> if not", f"{condition[1]}not ({condition[2]}){condition[3]}{rest}"
    is_whole = code.count("(") == code.count(")") and not LUA_GOES_ON.search(before)
    if is_whole and LUA_CALL.fullmatch(code):
        yield 0, f"without {code.strip()[:60]}", ""
