"""The supervisor restarts a part whose thread hangs, and reports it (STR-9)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest

from tests.support.waiting import wait_until
from workers.cli import embedded_redis, processes, run
from workers.cli.processes import Child
from workers.cli.run import ASK_SECONDS, MOST_UNANSWERED, Supervisor
from workers.cli.run import LIVE_FILE as LOOKED_AT
from workers.config.flags import Command
from workers.config.load import parse
from workers.errors import ConfigError
from workers.process import LIVE_FILE

PART = (
    "import sys, pathlib, time; pathlib.Path(sys.argv[1]).write_text(sys.argv[2]); time.sleep(600)"
)


@pytest.fixture
def supervisor(tmp_path):
    settings = parse(Command.RUN, ["--redis-url=redis://127.0.0.1:1/0"], {})
    return Supervisor(settings, [], tmp_path)


@pytest.fixture
def part(tmp_path, monkeypatch):
    """Yield a function that starts a process that writes `word` once to its liveness file."""
    started = []

    def start(word):
        child = Child("worker-0", [], {}, ready=True, live=tmp_path / LIVE_FILE)
        command = [sys.executable, "-c", PART, str(child.live), word]
        start_process = processes.subprocess.Popen
        monkeypatch.setattr(
            processes.subprocess, "Popen", lambda _, **named: start_process(command, **named)
        )
        child.start()
        started.append(child.process)
        wait_until(lambda: child.live.exists() and child.live.read_text() == word, 20, "its word")
        return child

    yield start
    monkeypatch.undo()
    for process in started:
        process.kill()
        process.wait()


def test_the_parts_take_the_kubeconfig_that_somebody_typed(tmp_path, monkeypatch):
    """The parts are sidecar commands, for which KUBECONFIG takes precedence over the flag."""
    given = ["--redis-url=redis://127.0.0.1:1/0", "--kubeconfig=/flag"]
    supervisor = Supervisor(parse(Command.RUN, given, {"KUBECONFIG": "/env"}), given, tmp_path)
    monkeypatch.setattr(supervisor, "begin", lambda _: None)
    monkeypatch.setattr(supervisor, "preload", lambda *_: None)
    supervisor.start()
    assert {one.env.get("KUBECONFIG") for one in supervisor.children} == {"/flag"}


def test_both_sides_mean_the_same_file():
    assert LOOKED_AT == LIVE_FILE


def test_a_part_that_hangs_is_named_and_started_again(supervisor, part):
    child = part("pump: no progress for 31 s")
    supervisor.children.append(child)
    assert supervisor.check_live() == "worker-0: pump: no progress for 31 s"
    first = child.process
    assert supervisor.look_after(child) is None
    assert first.poll() is not None
    assert child.process is None
    assert child.next_start > 0
    assert supervisor.check_live() == "", "the next one begins without the old word"


def test_a_part_that_is_well_is_left_alone(supervisor, part):
    child = part("")
    supervisor.children.append(child)
    assert supervisor.look_after(child) is None
    assert child.process.poll() is None
    assert supervisor.check_live() == ""


def test_a_part_that_tells_nothing_any_more_hangs_as_a_whole(part, monkeypatch):
    """Time counts on the supervisor's own clock since the last write: a laptop may have slept."""
    child = part("")
    os.utime(child.live, (1, 1))
    now = [1000.0]
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    assert child.hangs() == ""
    now[0] += processes.SILENT_SECONDS + 1
    assert child.hangs() == "silent for 121 s"
    os.utime(child.live, (2, 2))
    assert child.hangs() == ""


def test_a_part_without_such_a_file_says_nothing(tmp_path):
    assert Child("beat", [], {}, live=tmp_path / "none").hangs() == ""
    assert Child("flower", [], {}).hangs() == ""


def ended_redis(supervisor):
    supervisor.redis = subprocess.Popen(["true"])
    supervisor.redis.wait()


def test_an_embedded_redis_that_ended_is_started_again(supervisor, tmp_path):
    ended_redis(supervisor)
    assert supervisor.check_ready() == "waiting for redis"
    supervisor.keep_redis()
    try:
        embedded_redis.wait_ready(supervisor.redis, tmp_path)
        assert supervisor.check_ready() == ""
        first = supervisor.redis
        supervisor.keep_redis()
        assert supervisor.redis is first
    finally:
        embedded_redis.stop(supervisor.redis, tmp_path)


@pytest.mark.parametrize("error", [OSError("no memory"), ConfigError("no redis-server found")])
def test_one_that_cannot_be_started_is_tried_again(supervisor, monkeypatch, error):
    """The cause may last for a while; the other parts keep running, with one attempt per second."""
    ended_redis(supervisor)
    tries = []

    def fails(_directory):
        tries.append(1)
        raise error

    monkeypatch.setattr(embedded_redis, "start", fails)
    supervisor.keep_redis()
    supervisor.keep_redis()
    assert len(tries) == 1
    supervisor.redis_next = 0.0
    supervisor.keep_redis()
    assert len(tries) == 2


@pytest.fixture
def asked(supervisor, tmp_path, monkeypatch):
    """Return a function that makes `times` pings of a real embedded Redis fall due."""
    now = [1000.0]
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: now[0]))
    supervisor.redis, _ = embedded_redis.start(tmp_path)
    embedded_redis.wait_ready(supervisor.redis, tmp_path)

    def ask(times):
        for _ in range(times):
            supervisor.keep_redis()
            now[0] += ASK_SECONDS

    yield ask
    supervisor.redis.kill()
    supervisor.redis.wait()


def test_an_embedded_redis_that_hangs_is_started_again(supervisor, asked, tmp_path):
    """STR-9: a stopped Redis never exits on its own, and every worker would wait forever."""
    first = supervisor.redis
    asked(1)
    first.send_signal(signal.SIGSTOP)
    asked(MOST_UNANSWERED - 1)
    assert first.poll() is None, "it may be slow"
    assert supervisor.check_ready() == "waiting for redis"
    asked(1)
    assert first.wait(20) == -signal.SIGKILL
    supervisor.keep_redis()
    assert supervisor.redis is not first
    embedded_redis.wait_ready(supervisor.redis, tmp_path)
    assert supervisor.check_ready() == ""


def test_an_embedded_redis_that_answers_in_between_is_left_alone(supervisor, asked, tmp_path):
    path = tmp_path / embedded_redis.SOCKET
    for _ in range(2):
        supervisor.redis.send_signal(signal.SIGSTOP)
        asked(MOST_UNANSWERED - 1)
        supervisor.redis.send_signal(signal.SIGCONT)
        wait_until(lambda: embedded_redis.reply(path), 20, "it goes on")
        asked(1)
    assert supervisor.redis.poll() is None
    assert supervisor.check_ready() == ""


def test_an_embedded_redis_that_is_busy_is_left_alone(supervisor, asked, tmp_path):
    """It does answer that a script runs, and killing it would lose the script's data."""
    path = tmp_path / embedded_redis.SOCKET
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as client:
        client.connect(str(path))
        client.sendall(b'CONFIG SET lua-time-limit 10\r\nEVAL "while true do end" 0\r\n')
        wait_until(lambda: embedded_redis.reply(path).startswith(b"-BUSY"), 20, "busy")
        asked(MOST_UNANSWERED + 1)
    assert supervisor.redis.poll() is None
    assert supervisor.check_ready() == ""
