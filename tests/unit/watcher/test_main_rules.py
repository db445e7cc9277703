"""The watcher's process: how it starts and ends, and its errors for a wrong command line."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from watcher import __main__ as command
from workers.config.flags import Command
from workers.config.load import parse

REDIS = "--redis-url=redis://127.0.0.1:9/0"


class Parts:
    """The parts of the process; `told` lists the calls they get, in order."""

    def __init__(self, monkeypatch, *, has_server=True):
        self.told = told = []
        watcher = SimpleNamespace(
            check_ready=str,
            start=lambda: told.append("watcher starts"),
            stop=lambda: told.append("watcher stops"),
        )
        server = SimpleNamespace(stop=lambda: told.append("server stops"))
        says = lambda what, found=None: lambda *_, **__: told.append(what) or found  # noqa: E731
        monkeypatch.setattr(command, "build", says("built", watcher))
        monkeypatch.setattr(command, "serve", says("serves", server if has_server else None))
        monkeypatch.setattr(command, "tell_liveness", says("tells liveness"))
        monkeypatch.setattr(command, "mark_ready", says("ready"))
        monkeypatch.setattr(command, "configure_logging", says("logs"))
        monkeypatch.setattr(signal, "pthread_sigmask", says("signals wait"))
        monkeypatch.setattr(signal, "sigwait", says("a signal came"))


@pytest.mark.parametrize("has_server", [True, False])
def test_a_watcher_s_life(monkeypatch, has_server):
    """Signals are blocked before the first thread starts; the probe server stops last."""
    parts = Parts(monkeypatch, has_server=has_server)
    assert command.main([REDIS]) == 0
    start = ["logs", "signals wait", "built", "serves", "tells liveness", "watcher starts"]
    end = ["ready", "a signal came", "watcher stops", *(["server stops"] if has_server else [])]
    assert parts.told == start + end


def test_flags_are_those_of_the_command_line_unless_given(monkeypatch):
    """This covers the program itself and the start by the supervisor."""
    given = []
    monkeypatch.setattr(command, "configure_logging", lambda *_: None)
    monkeypatch.setattr(command, "run", lambda settings: given.append(settings.redis.url) or 0)
    monkeypatch.setattr(command.sys, "argv", ["watcher", "--redis-url=redis://other:1/0"])
    assert command.main([REDIS]) == 0
    assert command.main() == 0
    settings = [parse(Command.WATCHER, [flag], {}) for flag in (REDIS, command.sys.argv[1])]
    assert given == [one.redis.url for one in settings]


def test_help_is_no_error(capsys):
    assert command.main(["--help"]) == 0
    assert "--redis-url" in capsys.readouterr().out


def test_f014_a_wrong_flag_is_one_line_and_an_exit_code(capsys):
    """F-014: nothing is started."""
    assert command.main(["--no-such-flag"]) not in {0, None}
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "no-such-flag" in said.err


def test_the_start_is_told(monkeypatch, caplog):
    """The log names the namespace of the watcher's ConfigMaps."""
    Parts(monkeypatch)
    with caplog.at_level("INFO"):
        command.main([REDIS])
    assert "watcher started" in caplog.messages
