"""doctor: one trouble is told once."""

from __future__ import annotations

from workers.cli import doctor
from workers.cli.tools import Tools
from workers.config.flags import Command
from workers.config.load import parse
from workers.errors import QueueUnavailable


def test_a_redis_that_is_away_is_told_once(monkeypatch):
    def away(_):
        raise QueueUnavailable("redis: away")
        yield

    for name in ("versions", "api_server", "rights", "drivers"):
        monkeypatch.setattr(doctor, name, lambda _: iter(()))
    for name in ("redis_settings", "system"):
        monkeypatch.setattr(doctor, name, away)
    tools = Tools(parse(Command.DOCTOR, ["--redis-url=redis://127.0.0.1:1"], {}))
    assert [one.text for one in doctor.findings(tools)] == ["redis: away"]
