"""`run` starts as many worker processes as its drivers can keep CPUs busy."""

from __future__ import annotations

import pytest

from workers.config import load
from workers.config.load import Command, parse

MANY = [f"--csi-address=/run/{number}.sock" for number in range(20)]


@pytest.mark.parametrize(
    ("cpus", "flags", "workers"),
    [
        pytest.param(64, MANY[:1], 1, id="a second one beside a single driver is only memory"),
        pytest.param(64, MANY[:3], 3, id="one per driver"),
        pytest.param(2, MANY[:3], 2, id="no more than CPUs"),
        pytest.param(64, MANY, 8, id="no more than 8"),
        pytest.param(1, MANY, 1, id="one CPU"),
        pytest.param(4, ["--drivers-file=/f"], 4, id="who knows how many drivers"),
        pytest.param(4, ["--provisioner=a:B"], 1, id="a plug-in may keep state in its process"),
        pytest.param(4, ["--automaxprocs", *MANY[:1]], 4, id="as asked"),
        pytest.param(2, ["--workers=5", *MANY[:1]], 5, id="as told"),
        pytest.param(4, ["--controllers=snapshot-controller"], 1, id="no driver at all"),
    ],
)
def test_worker_processes(cpus, flags, workers, monkeypatch):
    monkeypatch.setattr(load, "available_cpus", lambda: cpus)
    assert parse(Command.RUN, flags, {}).process.workers == workers
