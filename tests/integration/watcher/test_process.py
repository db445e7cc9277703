"""The watcher as a process: start, outages, SIGTERM."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from tests.support.processes import start_process
from tests.support.waiting import wait_until

NOWHERE_API, NOWHERE_REDIS = "http://127.0.0.1:9", "redis://127.0.0.1:9/0"


@pytest.mark.parametrize(
    ("api_is_up", "redis_is_up"),
    [
        pytest.param(True, True, id="C-146 all up"),
        pytest.param(False, True, id="API server away"),
        pytest.param(True, False, id="Redis away"),
        pytest.param(False, False, id="both away"),
    ],
)
def test_sigterm_ends_it_quickly_and_cleanly(
    kubeconfig, own_redis, tmp_path, api_is_up, redis_is_up
):
    """No traceback and no exit whatever is away; exit code 0 when asked to stop."""
    command = [sys.executable, "-m", "watcher"]
    command += [f"--kubeconfig={kubeconfig}"] if api_is_up else [f"--master={NOWHERE_API}"]
    command += [f"--redis-url={own_redis.url if redis_is_up else NOWHERE_REDIS}"]
    process = start_process("watcher", command, log=tmp_path / "watcher.log")
    expected = "watcher started"
    if not redis_is_up:
        expected = "Redis is away"
    elif not api_is_up:
        expected = "cannot list or watch"
    wait_until(lambda: expected in process.log_tail(50), 30, expected)
    assert process.is_running()
    started = time.monotonic()
    process.signal(signal.SIGTERM)
    wait_until(lambda: not process.is_running(), 10, "watcher ended")
    assert time.monotonic() - started < 5
    assert process.popen.returncode == 0
    log = process.log_tail(200)
    assert "Traceback" not in log
    assert log.count("Redis is away") <= 2
