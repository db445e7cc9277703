"""Every family of records has a test that replays an old record (SEC2-1)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.replayed import REPLAYED
from workers.queue.names import NAMES

ROOT = Path(__file__).resolve().parents[3]


def test_every_family_of_records_is_put_back_by_a_test():
    """A new family of `_by_driver` needs a row in tests/support/replayed.py, and its test."""
    assert REPLAYED.keys() == {name for name, entry in NAMES.items() if entry.by_driver}


@pytest.mark.parametrize("test", sorted(set(REPLAYED.values())))
def test_the_test_is_there(test):
    file, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
