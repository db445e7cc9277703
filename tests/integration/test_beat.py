"""Only one of two beat processes ticks, and the other takes over within seconds (M-004)."""

from __future__ import annotations

import sys

import pytest

from tests.support.fleet import ROOT, environment
from tests.support.processes import start_process
from tests.support.waiting import wait_until
from workers.app import SYSTEM_QUEUE, beat_settings
from workers.config.settings import Settings


@pytest.fixture
def start_beat(redis_server, redis_client, tmp_path):
    """Return a function that starts beat processes with an empty Redis; they end with the test."""
    started = []

    def start(name):
        state = tmp_path / name
        state.mkdir()
        command = [sys.executable, "-m", "workers", "beat", f"--state-dir={state}"]
        command.append(f"--redis-url={redis_server.unix_url}")
        log = tmp_path / f"{name}.log"
        process = start_process(name, command, log=log, env=environment(), cwd=ROOT)
        started.append(process)
        wait_until(lambda: any(state.glob("*.ready")), 30, f"{name} is ready")
        return process

    yield start
    for process in started:
        process.kill()


def test_the_other_beat_ticks_on_after_a_kill(start_beat, redis_client):
    """The second beat takes over within seconds, because the lock of a dead beat expires after
    seconds, not after redbeat's default of minutes.
    """
    assert beat_settings(Settings())["redbeat_lock_timeout"] <= 10
    first = start_beat("first")
    wait_until(lambda: redis_client.llen(SYSTEM_QUEUE), 30, "the first one ticks")
    start_beat("second")
    first.kill()
    redis_client.delete(SYSTEM_QUEUE)
    wait_until(lambda: redis_client.llen(SYSTEM_QUEUE), 30, "the second one ticks")


def test_one_of_two_beats_ticks(start_beat, redis_client):
    """A second beat does no harm, because the first one keeps the lock."""
    start_beat("first")
    start_beat("second")
    wait_until(lambda: redis_client.llen(SYSTEM_QUEUE), 40, "a tick")
    holder = redis_client.get("redbeat::lock")
    assert holder is not None
    wait_until(lambda: redis_client.llen(SYSTEM_QUEUE) >= 2, 20, "another tick")
    assert redis_client.get("redbeat::lock") == holder
