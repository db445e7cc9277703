"""docs/causes.md is current, and docs/cli.md has every kind of work that status shows."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support import causes_page
from workers.controllers import catalogue

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_of_causes_is_current():
    """Run `python -m tests.support.causes_page > docs/causes.md` after changing a cause."""
    assert causes_page.DOCUMENT.read_text("utf-8") == causes_page.render()


def test_every_kind_of_work_that_status_shows_is_in_its_legend():
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    legend = text.partition("kind of WORK:")[2].partition("STATE is")[0]
    shown = {kind.name for kind in catalogue.kinds().values() if kind.noun}
    assert set(re.findall(r"`([^`]+)`", legend)) == shown
