"""The settings that a worker reports contain no credential."""

from __future__ import annotations

import json

import pytest
from celery.app.utils import Settings as CelerySettings
from celery.worker.control import conf as reported_conf

from workers.app import make_app
from workers.config.load import parse

PASSWORD = "hunter2-planted"
URLS = (
    "redis://127.0.0.1:6379/0",
    "rediss://redis:6379/0?ssl_ca_certs=/ca.crt",
    "unix:///run/redis.sock",
)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("command", ["worker", "watcher", "flower"])
def test_no_setting_that_is_reported_holds_a_credential(command: str, url: str) -> None:
    """Flower's Config tab, `GET /api/workers` and `inspect().conf()` return these settings."""
    environ = {"CSI_FLEET_REDIS_PASSWORD": PASSWORD, "CSI_FLEET_REDIS_USERNAME": "worker"}
    app = make_app(parse(command, [f"--redis-url={url}"], environ))

    class State:
        """Has the attribute of a worker's control state that the command reads."""

    State.app = app
    assert isinstance(app.conf, CelerySettings)
    assert PASSWORD in app.conf.broker_url, "the test plants it"
    shown = json.dumps(reported_conf(State, with_defaults=True), default=str)
    assert "broker_url" in shown
    assert PASSWORD not in shown
