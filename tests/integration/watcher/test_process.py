"""The watcher as a process: its start, outages and SIGTERM."""

from __future__ import annotations

import signal
import sys
import time

import pytest
import requests

from tests.support.processes import free_port, start_process
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
    """The process survives outages without a traceback, and SIGTERM ends it with code 0."""
    command = [sys.executable, "-m", "watcher"]
    command += [f"--kubeconfig={kubeconfig}"] if api_is_up else [f"--master={NOWHERE_API}"]
    command += [f"--redis-url={own_redis.url if redis_is_up else NOWHERE_REDIS}"]
    process = start_process("watcher", command, log=tmp_path / "watcher.log")
    expected = "watcher started"
    if not redis_is_up:
        expected = 'err="redis: '
    elif not api_is_up:
        expected = "could not list or watch"
    wait_until(lambda: expected in process.log_tail(50), 30, expected)
    assert process.is_running()
    started = time.monotonic()
    process.signal(signal.SIGTERM)
    wait_until(lambda: not process.is_running(), 10, "watcher ended")
    assert time.monotonic() - started < 5
    assert process.popen.returncode == 0
    log = process.log_tail(200)
    assert "Traceback" not in log
    assert log.count("background loop failed") <= 2


def test_probes_tell_what_is_missing(kubeconfig, own_redis, tmp_path):
    """A watcher without Redis is alive, because a restart would not help, but not ready."""
    own_redis.kill()
    port = free_port()
    command = [sys.executable, "-m", "watcher", f"--http-endpoint=127.0.0.1:{port}"]
    command += [f"--kubeconfig={kubeconfig}", f"--redis-url={own_redis.url}"]
    process = start_process("watcher", command, log=tmp_path / "watcher.log")

    def probe(path):
        answer = requests.get(f"http://127.0.0.1:{port}{path}", timeout=5)
        return answer.status_code, answer.text.strip()

    try:
        wait_until(
            lambda: "waiting for Redis: redis: Error" in probe("/readyz")[1], 30, "not ready"
        )
        assert probe("/healthz")[0] == 200
        own_redis.start()
        wait_until(lambda: probe("/readyz")[0] == 200, 30, "ready")
    finally:
        process.stop()
