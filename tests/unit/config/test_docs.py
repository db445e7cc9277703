"""docs/flags.md describes the program's flags."""

from __future__ import annotations

import re
from pathlib import Path

from workers.config.flagdocs import flags_markdown
from workers.config.flagsets import flag_set
from workers.controllers import catalogue

FLAGS = flag_set(catalogue.choose("provisioner")).flags
FLAGS_PAGE = Path(__file__).parents[3] / "docs" / "flags.md"


def test_page_is_current():
    """Run `python -m workers.config.flagdocs > docs/flags.md` after changing a flag."""
    assert FLAGS_PAGE.read_text(encoding="utf-8") == flags_markdown()


def test_every_flag_and_variable_is_on_the_page():
    text = flags_markdown()
    assert all(f"--{flag.name}`" in text for flag in FLAGS.values())
    assert all(f"`{flag.env}`" in text for flag in FLAGS.values() if flag.env)


def test_a_drivers_own_flags_are_on_the_page_of_the_drivers_file():
    """A user who reads there that a flag may differ by driver can set it in the file."""
    page = (FLAGS_PAGE.parent / "drivers-file.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| `flags` |"))
    named = set(re.findall(r"`([a-z-]+)`", row)) - {"flags"}
    assert named == {flag.name for flag in FLAGS.values() if flag.per_driver}
