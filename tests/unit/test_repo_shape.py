"""The repository's own rules: sizes, names, and nothing in it that only fits one machine."""

from __future__ import annotations

import ast
import io
import re
import statistics
import subprocess
import sys
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("csi_client", "watcher", "workers")
MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 80
# Of 100 functions 95 have no more, so that one is read at a glance.
MOST_FUNCTIONS_LINES = 30
USUAL_FILE_LINES = (80, 200)
LEAST_TEST_RATIO = 1.5
MAX_TYPE_IGNORES = 10
# The one package with an API for others: what an author of a provisioner imports.
PUBLIC_API = "workers/custom/__init__.py"
FORBIDDEN_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|managers?)(_|$)", re.IGNORECASE)
# Written in pieces, so that this file does not find itself.
REGISTRY_HOSTS = (
    "pypi." + "org",
    "files.python" + "hosted.org",
    "proxy.golang." + "org",
    "sum.golang." + "org",
    "registry.npm" + "js.org",
    "deb.debian." + "org",
    "crates." + "io",
)
MACHINE_PATHS = ("/ro" + "ot/", "/wo" + "rk/", "/ho" + "me/", "/Us" + "ers/", "/tmp/" + "bash_jobs")
SOURCE_SUFFIXES = {".py", ".lua", ".proto"}
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def _committed() -> list[Path]:
    """Files that git tracks or would add, so that a new file is judged before its commit."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]


@cache
def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def _sources() -> list[Path]:
    return [
        path
        for path in _committed()
        if path.suffix in SOURCE_SUFFIXES
        and "_generated" not in path.parts
        # Written from workers/queue/lua (tests/support/redis_acl.py).
        and path.name != "functions.lua"
    ]


def _python(*folders: str) -> list[Path]:
    """Python files, of the named top-level folders only if any are named."""
    return [
        path
        for path in _sources()
        if path.suffix == ".py" and (not folders or path.relative_to(ROOT).parts[0] in folders)
    ]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _overlong_files(files: list[Path], limit: int) -> list[str]:
    sizes = {path: _text(path).count("\n") for path in files if path.suffix != ".proto"}
    return [f"{_name(path)}: {size}" for path, size in sizes.items() if size > limit]


def _functions(source: str) -> list[tuple[str, int]]:
    """Names and lines."""
    return [
        (node.name, node.end_lineno - node.lineno + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]


def _overlong_functions(source: str, limit: int) -> list[str]:
    return [f"{name}: {size}" for name, size in _functions(source) if size > limit]


def _code_lines(source: str) -> int:
    """Lines with code on them: no comments, no blank lines, no docstrings."""
    documented = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - documented)


def test_no_file_is_longer_than_450_lines() -> None:
    """A file answers one question; past this size it answers several."""
    assert _overlong_files(_sources(), MAX_FILE_LINES) == []


def test_no_function_is_longer_than_80_lines() -> None:
    found = [
        f"{_name(path)} {function}"
        for path in _python()
        for function in _overlong_functions(_text(path), MAX_FUNCTION_LINES)
    ]
    assert found == []


def test_size_checks_see_an_overlong_file_and_function() -> None:
    """The two checks above can fail."""
    body = "def long() -> None:\n" + "    pass\n" * MAX_FUNCTION_LINES
    assert _overlong_functions(body, MAX_FUNCTION_LINES) == ["long: 81"]
    assert _overlong_files([Path(__file__)], 10) != []


def test_functions_and_files_have_a_usual_size() -> None:
    """Small enough to be read, not so small that one looks for the rest all the time."""
    sources = [_text(path) for path in _python(*PACKAGES) if path.name != "__init__.py"]
    sizes = sorted(size for source in sources for _, size in _functions(source))
    assert sizes[len(sizes) * 95 // 100] <= MOST_FUNCTIONS_LINES
    least, most = USUAL_FILE_LINES
    assert least <= statistics.median(source.count("\n") for source in sources) <= most


def test_there_is_more_test_than_code() -> None:
    """Measured by lines of code on both sides."""
    tests, code = (
        sum(_code_lines(_text(path)) for path in _python(*folders))
        for folders in (("tests",), PACKAGES)
    )
    assert tests / code >= LEAST_TEST_RATIO


def test_a_line_of_code_is_no_comment_and_no_docstring() -> None:
    assert _code_lines('"""Doc."""\n\n# why\nx = (\n    1\n)\n') == 3


def test_names_say_what_a_module_is_about() -> None:
    """No utils, helpers, common, manager: such names collect whatever has no place."""
    stems = [path for path in _python(*PACKAGES) if FORBIDDEN_NAMES.search(path.stem)]
    folders = {
        part
        for path in _python(*PACKAGES)
        for part in path.relative_to(ROOT).parts[:-1]
        if FORBIDDEN_NAMES.search(part)
    }
    assert [_name(path) for path in stems] == []
    assert folders == set()


def test_init_files_hold_only_a_docstring() -> None:
    """Importing a package loads nothing: the watcher stays free of grpc and Celery."""
    offenders = []
    for path in _python(*PACKAGES):
        if path.name != "__init__.py" or _name(path) == PUBLIC_API:
            continue
        body = ast.parse(_text(path)).body
        if len(body) != 1 or ast.get_docstring(ast.parse(_text(path))) is None:
            offenders.append(_name(path))
    assert offenders == []


@pytest.mark.parametrize("package", [*PACKAGES, "workers.custom"])
def test_importing_a_package_loads_no_service_library(package: str) -> None:
    """Nothing connects on import, and a plug-in's author pays for nothing unused."""
    program = (
        f"import sys, {package}; "
        "print(*sorted({'grpc', 'celery', 'redis', 'kubernetes'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_every_package_is_typed() -> None:
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").exists()] == []


def test_type_ignores_are_few_and_coded() -> None:
    """Each names its error code; together they stay under ten."""
    lines = [
        f"{_name(path)}: {line.strip()}"
        for path in _python(*PACKAGES)
        for line in _text(path).splitlines()
        if "# type:" + " ignore" in line
    ]
    assert [line for line in lines if "# type:" + " ignore[" not in line] == []
    assert len(lines) < MAX_TYPE_IGNORES


@pytest.mark.parametrize("word", [*REGISTRY_HOSTS, *MACHINE_PATHS])
def test_no_machine_path_and_no_registry_host_is_committed(word: str) -> None:
    """The checkout works on any machine, with whatever index that machine is set up for."""
    pattern = re.compile(r"(?<![\w.$}])" + re.escape(word))
    assert [_name(path) for path in _committed() if pattern.search(_text(path))] == []


def test_no_lua_script_is_inline() -> None:
    """One script a file under workers/queue/lua, where its keys and types are documented."""
    inline = re.compile(r"redis\.call\(")
    assert [_name(path) for path in _python(*PACKAGES) if inline.search(_text(path))] == []


def test_every_make_target_that_a_page_names_is_there() -> None:
    """A phony name without a recipe would be "nothing to be done", which looks like success."""
    makefile = _text(ROOT / "Makefile")
    phony = re.search(r"^\.PHONY:((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert phony is not None
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    named = {one for page in pages for one in re.findall(r"`make ([a-z][a-z0-9-]*)", _text(page))}
    wanted = named | set(phony.group(1).replace("\\", "").split())
    ruled = re.findall(r"^((?:[a-z0-9-]+ ?)+):", makefile, re.MULTILINE)
    assert wanted - {one for line in ruled for one in line.split()} == set()


def test_every_file_that_a_page_names_is_there() -> None:
    """STR-13: a page that sends its reader to a file which was moved helps nobody.

    A path may be told from the folder that the page is about; a plain name needs any file of it.
    """
    known = {_name(path) for path in _committed()}
    ends = {name[place:] for name in known for place in _starts(name)}
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages += [
        ROOT / "docs" / f"{name}.md" for name in ("architecture", "development", "guarantees")
    ]
    lost = {
        f"{page.name}: {named}"
        for page in pages
        for named in re.findall(r"`([\w./-]+\.(?:py|lua|toml|sh))`", _text(page))
        if named not in ends
    }
    assert lost == set()


def _starts(name: str) -> list[int]:
    return [0, *(place + 1 for place, letter in enumerate(name) if letter == "/")]
