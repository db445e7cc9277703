"""Beat and Flower start without Redis and log once where it should be and what to do."""

from __future__ import annotations

import sys

import pytest

from tests.support.fleet import ROOT, environment
from tests.support.processes import free_port, start_process
from tests.support.waiting import wait_until

MINE = {
    "beat": lambda folder: [f"--state-dir={folder}"],
    "flower": lambda _: [f"--flower-port={free_port()}"],
}


@pytest.mark.parametrize("part", MINE)
def test_the_first_line_names_the_place_and_the_remedy(part, tmp_path):
    url, log = f"redis://127.0.0.1:{free_port()}/0", tmp_path / "log"
    command = [sys.executable, "-m", "workers", part, f"--redis-url={url}", *MINE[part](tmp_path)]
    process = start_process(part, command, log=log, env=environment(), cwd=ROOT)
    try:
        wait_until(lambda: len(log.read_text().splitlines()) > 1, 60, f"{part} tries again")
        first, *others = log.read_text().splitlines()
        assert '"waiting for Redis"' in first
        assert url in first
        assert "check that Redis is running and that --redis-url is correct" in first
        assert not any("waiting for Redis" in line for line in others)
        assert process.is_running()
    finally:
        process.kill()
