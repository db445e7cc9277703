"""The state folder of a run: private, found by operator commands, removed afterwards (OPS-9)."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from workers.cli import run, statefolder
from workers.cli.embedded_redis import SOCKET, url_of
from workers.cli.tools import with_redis
from workers.config.flags import Command
from workers.config.load import default_state_dir, parse
from workers.errors import ConfigError

HOLD = (
    "import sys; from workers.config.load import parse; from workers.cli import statefolder\n"
    "folder = statefolder.take(parse('run', sys.argv[1:], {}))\n"
    "print(folder.path, flush=True); sys.stdin.read(); folder.close()"
)


@pytest.fixture
def usual(tmp_path, monkeypatch):
    """Return the default folder, inside the test's temporary folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("CSI_FLEET_STATE_DIR", raising=False)
    return default_state_dir(os.environ)


@pytest.fixture
def another_run(usual):
    """Yield a function that starts a run in another process and returns process and folder."""
    processes = []

    def start(*flags):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in processes:
        process.communicate()


def take(*flags):
    return statefolder.take(parse(Command.RUN, flags, {}))


def test_a_run_without_a_named_folder_takes_the_one_the_commands_look_into(usual):
    folder = take()
    assert folder.path == usual
    assert usual.stat().st_mode & 0o777 == 0o700
    assert with_redis(parse(Command.STATUS, [], {})).redis.url == ""
    (usual / SOCKET).touch()
    found = with_redis(parse(Command.STATUS, [], os.environ))
    assert found.redis.url == url_of(usual)
    folder.close()
    assert not usual.exists()


def test_a_second_run_without_a_named_folder_takes_one_of_its_own(usual, another_run):
    _, first = another_run()
    assert first == str(usual)
    folder = take()
    assert folder.path != usual
    folder.close()
    assert usual.exists()
    assert not folder.path.exists()


def test_a_folder_that_a_dead_run_left_is_taken(usual, another_run):
    process, _ = another_run()
    process.kill()
    process.wait()
    assert usual.exists()
    folder = take()
    assert folder.path == usual
    folder.close()


@pytest.mark.parametrize("kind", ["can be reached from other hosts", "a link", "a file"])
def test_what_others_may_write_to_is_not_taken_nor_believed(usual, tmp_path, kind):
    if kind == "a file":
        usual.touch(mode=0o600)
    elif kind == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        usual.symlink_to(tmp_path / "elsewhere")
    else:
        usual.mkdir()
        usual.chmod(0o770)
    if kind != "a file":
        (usual / SOCKET).touch()
    folder = take()
    assert folder.path != usual
    folder.close()
    assert usual.exists()
    assert with_redis(parse(Command.STATUS, [], os.environ)).redis.url == ""


def test_a_named_folder_is_one_runs_alone(tmp_path, another_run):
    process, _ = another_run(f"--state-dir={tmp_path / 'x'}")
    used = f"folder {tmp_path / 'x'} is in use by the process with pid {process.pid}"
    said = f"{used}. Set a different --state-dir"
    with pytest.raises(ConfigError, match=said) as caught:
        take(f"--state-dir={tmp_path / 'x'}")
    assert caught.value.exit_code == 1
    process.communicate()
    folder = take(f"--state-dir={tmp_path / 'x'}")
    folder.close()
    assert (tmp_path / "x").exists()


def test_a_named_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--state-dir: cannot use .*file: "):
        take(f"--state-dir={tmp_path / 'file'}")


def test_a_part_is_not_ready_because_a_run_before_this_one_was(tmp_path):
    old = tmp_path / "watcher" / "watcher.ready"
    old.parent.mkdir()
    old.touch()
    settings = parse(Command.RUN, ["--redis-url=redis://127.0.0.1:1/0"], {})
    supervisor = run.Supervisor(settings, [], tmp_path)
    supervisor.add("watcher", Command.WATCHER, ["watcher"], {})
    assert not supervisor.is_ready(SimpleNamespace(name="watcher"))


def test_a_run_names_its_folder_and_keeps_others_out_of_it(usual, monkeypatch, capsys):
    said = []
    monkeypatch.setattr(run._log, "info", lambda message, **fields: said.append(fields))
    monkeypatch.setattr(run.signal, "signal", lambda *_: None)
    monkeypatch.setattr(run.Supervisor, "start", lambda _: None)
    monkeypatch.setattr(run.Supervisor, "watch", lambda _: 0)
    assert run.run(parse(Command.RUN, [], {}), []) == 0
    assert said == [{"folder": str(usual)}]
