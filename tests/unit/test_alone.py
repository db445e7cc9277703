"""A sidecar without a Redis URL reports that it joins no installation."""

from __future__ import annotations

import pytest

from workers import __main__ as program

ARGUMENTS = ["csi-attacher", "--csi-address=/csi/csi.sock"]


@pytest.fixture
def dispatched(monkeypatch):
    """The commands that would have been run."""
    found = []
    monkeypatch.setattr(program, "dispatch", lambda command, *_: found.append(command) or 0)
    for name in ("CSI_FLEET_REDIS_URL", "CSI_FLEET_REDIS_USERNAME"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_it_logs_that_it_is_an_installation_of_its_own(dispatched, capsys):
    assert program.main(ARGUMENTS) == 0
    assert dispatched == ["run"]
    (line,) = capsys.readouterr().err.splitlines()
    assert "an installation of its own" in line
    assert "CSI_FLEET_REDIS_URL" in line


def test_half_a_configuration_is_an_error(dispatched, monkeypatch, capsys):
    monkeypatch.setenv("CSI_FLEET_REDIS_USERNAME", "worker.fast.csi.example.org")
    assert program.main(ARGUMENTS) != 0
    assert dispatched == []
    assert "CSI_FLEET_REDIS_URL is not" in capsys.readouterr().err


def test_with_the_url_it_is_a_worker(dispatched, monkeypatch, capsys):
    monkeypatch.setenv("CSI_FLEET_REDIS_URL", "redis://redis:6379/0")
    assert program.main(ARGUMENTS) == 0
    assert dispatched == ["worker"]
    assert "of its own" not in capsys.readouterr().err
