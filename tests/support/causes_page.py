"""Generates docs/causes.md: `python -m tests.support.causes_page > docs/causes.md`.

The page lists every `Cause(code, text, advice, ...)` that a file of workers/ constructs. A value
that is known only at run time is printed as its name in capitals: `{facts.class_name}` becomes
CLASS-NAME. A value that continues a word becomes an ellipsis.
"""

from __future__ import annotations

import ast
import string
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from workers.controllers.attacher.names import Reason
from workers.explain.commands import COMMANDS
from workers.explain.facts import Cause
from workers.explain.moves import move_of
from workers.explain.words import WHEN_REJECTED

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "causes.md"
# The codes of the one cause whose code is computed, in workers/controllers/attacher/explain.py.
COMPUTED = {"attach-failed", "detach-failed", *filter(None, Reason)} - {Reason.SECRET_MISSING}
# What the page prints for values whose names say too little.
_PHRASES = {
    "again": " (The time of the next attempt.)",
    "WHEN_REJECTED": WHEN_REJECTED,
    "advice": "(Depends on the error.)",
    "held.text": "(The cause of the content or VolumeAttachment follows.)",
    "held.advice": "(Its advice follows.)",
    "action": "attach/mount",
    "found.text": "(The cause of the work follows.)",
    "grown + waits + rest": (
        "The volume was expanded. kubelet must still expand the file system on a node."
    ),
    "words": "(Why the status of the content was not copied to the snapshot.)",
    "' '.join(said)": "(What is left in the namespace.)",
    "', '.join(told)": "FINALIZERS",
    "place": "PLACE-IN-THE-QUEUE",
    "word": "attach/detach",
    "noun.word": "KIND",
    "found[0]": "MESSAGE",
    "whose": "CLAIM",
    "chooser": "The scheduler",
    "who": "POPULATOR",
    "what": "…",
    "known": "",
}
# Calls by their function's name.
_CALLS = {
    "next_try": _PHRASES["again"],
    "_again": _PHRASES["again"],
    "_message": "MESSAGE",
    "duration": "DURATION",
    "moment": "TIME",
    "program_of": "PROGRAM",
    "_claim_of": "NAMESPACE/NAME",
    "_node": "Node NODE",
}

_ENDS = (*string.ascii_letters, ".", '"')

_HEAD = """# Causes

`python -m tests.support.causes_page > docs/causes.md` generates this page from the source code.

`csi-fleet explain` and `csi-fleet pending` name each cause by a stable word (`cause` in `-o json`;
[cli.md](cli.md#explain)). For each of these words, this page shows who must act, what the
commands report, after `->` what to do, and the commands to run next. Words in capitals stand for
names and numbers of your cluster, which `explain` fills in. OBJECT is a kind and a name for kubectl
(with `-n NAMESPACE`), and RETRY is the same for `csi-fleet retry`.
"""


def causes() -> dict[str, list[tuple[str, str]]]:
    """Return (text, advice) of every cause by its code; each pair once, in the order of the code.

    The advice is "" if the cause has none.
    """
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in sorted((ROOT / "workers").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        names = _constants(tree)
        for call in _calls(tree):
            arguments = dict(zip(("code", "text", "advice"), call.args, strict=False))
            arguments |= {one.arg: one.value for one in call.keywords if one.arg}
            pair = _text(arguments.get("text"), names), _text(arguments.get("advice"), names)
            for code in sorted(_codes(arguments["code"], names)):
                if pair not in found[code]:
                    found[code].append(pair)
    return found


def render() -> str:
    """Return the whole page."""
    lines = [_HEAD]
    for code, pairs in sorted(causes().items()):
        move = move_of(Cause(code, text=""))
        lines += [f"## {code}", "", f"Who must act: {move}.", ""]
        lines += [
            f"- {_escaped(f'{text} -> {advice}' if advice else text)}" for text, advice in pairs
        ]
        lines.append("")
        if commands := COMMANDS[code]:
            lines += ["To run next:", "", "```text"]
            lines += [_command(one) for one in commands]
            lines += ["```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _command(template: str) -> str:
    """Return a command with its names in capitals."""
    parts = string.Formatter().parse(template)
    return "".join(f"{text}{(name or '').replace('_', '-').upper()}" for text, name, *_ in parts)


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls of `Cause`, in the order of the file."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Cause"
    ]
    yield from sorted(found, key=lambda one: one.lineno)


def _constants(tree: ast.Module) -> Mapping[str, list[ast.expr]]:
    """Return the expressions that each name of a module is set to."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and node.value is not None:
                found[target.id].append(node.value)
    return found


def _codes(node: ast.expr, names: Mapping[str, list[ast.expr]]) -> set[str]:
    """Return every code that an expression can be."""
    if isinstance(node, ast.Constant):
        return {str(node.value)}
    if isinstance(node, ast.IfExp):
        return _codes(node.body, names) | _codes(node.orelse, names)
    if isinstance(node, ast.Name):
        values = {str(one.value) for one in names.get(node.id, ()) if isinstance(one, ast.Constant)}
        return values or COMPUTED
    return COMPUTED


def _text(node: ast.expr | None, names: Mapping[str, list[ast.expr]]) -> str:
    """Return the text of an expression, with run-time values replaced."""
    return " ".join(_parts(node, names).split()) if node is not None else ""


def _parts(node: ast.expr, names: Mapping[str, list[ast.expr]]) -> str:
    if (phrase := _PHRASES.get(ast.unparse(node))) is not None:
        return phrase
    match node:
        case ast.Constant():
            return str(node.value)
        case ast.JoinedStr():
            text = ""
            for part in node.values:
                if isinstance(part, ast.FormattedValue):
                    added = _parts(part.value, names)
                    # A value right behind a word is an optional addition to the sentence.
                    is_quoted = text.count('"') % 2 == 1
                    if is_quoted or not text.endswith(_ENDS) or added.startswith(" "):
                        text += added
                else:
                    text += _parts(part, names)
            return text
        case ast.BinOp():
            return _parts(node.left, names) + _parts(node.right, names)
        case ast.IfExp():
            both = _parts(node.body, names), _parts(node.orelse, names)
            return " / ".join(one for one in both if any(map(str.isalnum, one)))
        case ast.Call(func=ast.Attribute(attr="rstrip", value=value)):
            return _parts(value, names)
        case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called)) if called in _CALLS:
            return _CALLS[called]
        case ast.Name(id=name) if name.isupper() and len(names.get(name, ())) == 1:
            return _parts(names[name][0], names)
    return _name(node)


def _name(node: ast.expr) -> str:
    """Return an expression's most telling name in capitals."""
    match node:
        case ast.Attribute():
            name = node.attr
        case ast.Name():
            name = node.id
        case ast.Subscript(value=value, slice=ast.Constant(value=str() as name)):
            owner = value.value if isinstance(value, ast.Subscript) else value
            name = _name(owner) if name == "name" else name
        case ast.Subscript(value=value):
            return _name(value)
        case ast.BoolOp(values=[first, *_]):
            return _name(first)
        case ast.IfExp():
            return _name(node.body)
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str() as name), *_]):
            pass
        case ast.Call(args=[first, *_]):
            return _name(first)
        case _:
            return "…"
    return name.lstrip("_").replace("_", "-").upper()


def _escaped(text: str) -> str:
    """Escape what Markdown would read as emphasis or as an HTML tag."""
    return text.replace("*", r"\*").replace("_", r"\_").replace("<", r"\<")


if __name__ == "__main__":
    sys.stdout.write(render())
