"""doctor reports one problem only once."""

from __future__ import annotations

import pytest

from tests.unit.cli.test_adoptcentral import days_before_the_end
from workers.cli import certificates, doctor
from workers.cli.tools import Tools
from workers.config.flags import Command
from workers.config.load import parse
from workers.errors import QueueUnavailable


def test_a_redis_that_is_away_is_told_once(monkeypatch):
    def away(_):
        raise QueueUnavailable("redis: away")
        yield

    for name in ("versions", "api_server", "rights", "crds", "drivers"):
        monkeypatch.setattr(doctor, name, lambda _: iter(()))
    for name in ("redis_settings", "system"):
        monkeypatch.setattr(doctor, name, away)
    tools = Tools(parse(Command.DOCTOR, ["--redis-url=redis://127.0.0.1:1"], {}))
    assert [one.text for one in doctor.findings(tools)] == ["redis: away"]


@pytest.mark.parametrize(
    ("days", "state"), [(31, None), (20, doctor.WARN), (-1, doctor.FAIL)], ids=str
)
def test_a_certificate_of_a_driver_that_ends_is_told(tmp_path, days, state):
    with days_before_the_end(days):
        ca, key = certificates.make_authority("a")
        certificate, own = certificates.sign(ca, key, ["worker"], certificates.CLIENT)
    for name, text in {"ca.crt": ca, "tls.crt": certificate, "tls.key": own}.items():
        (tmp_path / name).write_bytes(text)
    (tmp_path / "drivers.yaml").write_text(
        "drivers:\n- {name: a.b, endpoint: 'localhost:1',"
        " tls: {ca: ca.crt, certificate: tls.crt, key: tls.key}}\n"
    )
    tools = Tools(parse(Command.DOCTOR, [f"--drivers-file={tmp_path / 'drivers.yaml'}"], {}))
    found = [one for one in doctor.drivers(tools) if "certificate in" in one.text]
    assert {one.state for one in found} == ({state} if state else set())
    assert len(found) == (2 if state else 0)
    assert all("adopt a.b --as=central" in one.text for one in found)
