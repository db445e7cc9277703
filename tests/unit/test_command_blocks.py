"""A test runs each block of commands in the pages, or the page's source says why none does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.fleet import ROOT

RELEASED = "tests/node/test_adoption_from_release.py"
# Page and heading: the test that runs the section's blocks unchanged.
TYPED = {
    ("README.md", "First volume, with Helm"): "tests/node/test_adoption.py",
    ("README.md", "And away again"): "tests/node/test_adoption.py",
    ("docs/migration.md", "Container by container"): "tests/node/test_adoption.py",
    ("docs/migration.md", "One container back"): "tests/node/test_adoption.py",
    ("docs/migration.md", "One driver to csi-fleet, step by step"): RELEASED,
    ("docs/migration.md", "And back"): RELEASED,
    ("docs/how-to/install-from-a-release.md", "Verify"): RELEASED,
    ("docs/how-to/install-from-a-release.md", "Command-line tools"): RELEASED,
    ("docs/tutorials/break-it.md", ""): "tests/e2e/test_break_it.py",
    ("docs/custom-provisioners.md", ""): "tests/e2e/test_custom_provisioners_doc.py",
}
NOT_TYPED = re.compile(r"<!-- Not typed by a test: [^>]{10,} -->")


def blocks(page: Path) -> Iterator[tuple[str, int, str]]:
    """Yield heading, line number and preceding line of each block of commands."""
    heading, above, is_inside = "", "", False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if line.startswith("```"):
            if not is_inside and line == "```sh":
                yield heading, number, above
            is_inside = not is_inside
        elif line.startswith("#") and not is_inside:
            heading = line.strip("# ")
        if line.strip():
            above = line


def test_each_block_of_commands_is_typed_or_says_why_not() -> None:
    open_ = []
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        name = str(page.relative_to(ROOT))
        for heading, number, above in blocks(page):
            typed = TYPED.get((name, heading)) or TYPED.get((name, ""))
            if not typed and not NOT_TYPED.fullmatch(above):
                open_.append(f"{name}:{number} ({heading})")
    assert open_ == []


def test_each_test_named_here_reads_the_page() -> None:
    for (page, heading), test in TYPED.items():
        text = (ROOT / test).read_text("utf-8")
        assert Path(page).name in text, (page, test)
        assert heading in text, (heading, test)
        assert heading in {one for one, *_ in blocks(ROOT / page)} | {""}, (page, heading)
