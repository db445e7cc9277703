"""A drivers file that names no driver for the worker is reported."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workers.drivers.central import Central

ONE = "drivers:\n  - {name: a.example.org, endpoint: /run/a.sock, pool: gold}\n"


@pytest.mark.parametrize(
    ("text", "pool", "count"),
    [("drivers: []\n", "", 0), (ONE, "", 0), (ONE, "gold", 1)],
    ids=["empty", "of another pool", "one driver"],
)
def test_a_worker_without_a_driver_says_so(tmp_path, caplog, text, pool, count):
    path = tmp_path / "drivers.yaml"
    path.write_text(text)
    applied = []
    Central(SimpleNamespace(apply=applied.append), path, pool=pool).start()
    assert [len(one) for one in applied] == [count]
    is_said = any("names no driver for this worker" in one for one in caplog.messages)
    assert is_said == (count == 0)
