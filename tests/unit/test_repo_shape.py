"""Rules of the repository itself: function length, names, and no machine-specific paths."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("csi_client", "watcher", "workers")
MAX_FUNCTION_LINES = 80
MAX_TYPE_IGNORES = 10
FORBIDDEN_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|managers?)(_|$)", re.IGNORECASE)
# These are split so that this file does not match itself.
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


def _committed() -> list[Path]:
    """Return the files that git tracks or would add, so a new file is checked before its commit."""
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
        # It is generated from workers/queue/lua (tests/support/redis_acl.py).
        and path.name != "functions.lua"
    ]


def _python(*folders: str) -> list[Path]:
    """Return the Python files, only those of the named top-level folders if any are named."""
    return [
        path
        for path in _sources()
        if path.suffix == ".py" and (not folders or path.relative_to(ROOT).parts[0] in folders)
    ]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _functions(source: str) -> list[tuple[str, int]]:
    """Return the name and the number of lines of each function."""
    return [
        (node.name, node.end_lineno - node.lineno + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]


def _overlong_functions(source: str, limit: int) -> list[str]:
    return [f"{name}: {size}" for name, size in _functions(source) if size > limit]


def test_no_function_is_longer_than_80_lines() -> None:
    found = [
        f"{_name(path)} {function}"
        for path in _python()
        for function in _overlong_functions(_text(path), MAX_FUNCTION_LINES)
    ]
    assert found == []


def test_an_overlong_function_is_seen() -> None:
    """The check above can fail."""
    body = "def long() -> None:\n" + "    pass\n" * MAX_FUNCTION_LINES
    assert _overlong_functions(body, MAX_FUNCTION_LINES) == ["long: 81"]


def test_names_say_what_a_module_is_about() -> None:
    """Names such as utils, helpers, common or manager attract code that belongs elsewhere."""
    stems = [path for path in _python(*PACKAGES) if FORBIDDEN_NAMES.search(path.stem)]
    folders = {
        part
        for path in _python(*PACKAGES)
        for part in path.relative_to(ROOT).parts[:-1]
        if FORBIDDEN_NAMES.search(part)
    }
    assert [_name(path) for path in stems] == []
    assert folders == set()


@pytest.mark.parametrize("package", [*PACKAGES, "workers.custom"])
def test_importing_a_package_loads_no_service_library(package: str) -> None:
    """An import makes no connection, and the author of a plug-in loads no unused library."""
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
    """Each comment names its error code, and there are fewer than ten in total."""
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
    """The checkout works on any machine, with any package index that the machine uses."""
    pattern = re.compile(r"(?<![\w.$}])" + re.escape(word))
    assert [_name(path) for path in _committed() if pattern.search(_text(path))] == []


def test_no_lua_script_is_inline() -> None:
    """Each script has its own file under workers/queue/lua, which documents its keys and types."""
    inline = re.compile(r"redis\.call\(")
    assert [_name(path) for path in _python(*PACKAGES) if inline.search(_text(path))] == []


def test_every_make_target_that_a_page_names_is_there() -> None:
    """A phony target without a recipe does nothing, which looks like success."""
    makefile = _text(ROOT / "Makefile")
    phony = re.search(r"^\.PHONY:((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert phony is not None
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    named = {one for page in pages for one in re.findall(r"`make ([a-z][a-z0-9-]*)", _text(page))}
    wanted = named | set(phony.group(1).replace("\\", "").split())
    ruled = re.findall(r"^((?:[a-z0-9-]+ ?)+):", makefile, re.MULTILINE)
    assert wanted - {one for line in ruled for one in line.split()} == set()


def test_every_file_that_a_page_names_is_there() -> None:
    """STR-13: a page must not send its reader to a file that was moved.

    A path may be relative to the folder that the page describes; a plain name may match any file.
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


def test_images_of_others_are_held_by_digest():
    """Otherwise whoever can write a tag in a registry chooses what runs next to the passwords."""
    files = [ROOT / "compose.yaml", *sorted((ROOT / "k8s").rglob("*.yaml"))]
    images = {
        image
        for path in files
        for image in re.findall(r"^\s*(?:- )?image: ([^\s]+)$", path.read_text(), re.MULTILINE)
    }
    own = ('""', "csi-fleet", ".invalid", "nfs-csi-driver")
    others = {one for one in images if not any(word in one for word in own)}
    assert any("redis:" in one for one in others), "the pattern still finds images"
    assert [one for one in others if not re.search(r"@sha256:[0-9a-f]{64}}?$", one)] == []


def _pages() -> list[Path]:
    """Return every Markdown page that a reader may open: at the top, under docs and under k8s."""
    return [
        path
        for path in _committed()
        if path.suffix == ".md"
        and (path.parent == ROOT or _name(path).startswith(("docs/", "k8s/")))
    ]


def _fenceless(page: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)


def _anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", page))
    for heading in re.findall(r"^#{1,6} +(.+?)[ #]*$", _fenceless(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        plain = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        again = 0
        while (anchor := f"{plain}-{again}" if again else plain) in found:
            again += 1
        found.add(anchor)
    return found


def _broken_links(page: Path) -> list[str]:
    """Return a page's relative links, outside code, to a missing file or heading."""
    prose = re.sub(r"`[^`\n]+`", "", _fenceless(_text(page)))
    links = re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", prose)
    broken = []
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in _anchors(_text(target))
        ):
            broken.append(f"{_name(page)}: {link}")
    return broken


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    pages = _pages()
    assert len(pages) > 30
    assert [link for page in pages for link in _broken_links(page)] == []


def test_a_broken_link_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail; two equal headings have two anchors."""
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.md").write_text("# B's `c`, d\n## Twice\n## Twice\n```sh\n# No heading\n```\n")
    page = tmp_path / "sub" / "a.md"
    good = "[x](../b.md) [x](../b.md#bs-c-d) [x](../b.md#twice-1) `[x](no)` [x](https://a.invalid/)"
    bad = ["../c.md", "../b.md#bs-c--d", "../b.md#twice-2", "../b.md#no-heading", "#here"]
    page.write_text("\n".join([good, *(f"[x]({link})" for link in bad)]))
    assert _broken_links(page) == [f"sub/a.md: {link}" for link in bad]
