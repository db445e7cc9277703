"""docs/flags.md says what the program does."""

from __future__ import annotations

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
