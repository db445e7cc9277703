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
    for name in ("_redis", "_parts"):
        monkeypatch.setattr(doctor, name, away)
    urls = ["--redis-url=redis://127.0.0.1:1", "--redis-url=redis://127.0.0.1:2"]
    for given, count in ((urls[:1], 1), (urls, 2)):
        found = list(doctor.findings(Tools(parse(Command.DOCTOR, given, {}))))
        assert [one.text for one in found] == ["redis: away"] * count
