"""The watcher's command line."""

from __future__ import annotations

import signal
from types import SimpleNamespace

from watcher import __main__ as command
from watcher.__main__ import build
from workers.config.flags import Command
from workers.config.flagsets import flag_set
from workers.config.load import parse
from workers.controllers import catalogue
from workers.observability.health import HEARTBEATS

HEEDED = {
    *("kubeconfig", "master", "kube-api-qps", "kube-api-burst"),
    *("http-endpoint", "metrics-address", "metrics-path", "metrics-token-review", "enable-pprof"),
    *("controllers", "namespace", "resync-period", "resync", "state-dir"),
    *("snapshotter-resync-period", "snapshot-controller-resync-period"),
    *(
        "redis-url",
        "redis-username",
        "redis-broker-username",
        "redis-password-file",
        "redis-insecure",
    ),
    *("redis-sentinel-username", "redis-sentinel-password-file"),
    *("v", "logging-format", "version"),
}


def test_ops12_the_watcher_takes_only_flags_that_it_heeds():
    """A flag without effect would mislead; registrations of the drivers hold all other settings."""
    flags = flag_set(catalogue.choose("all")).flags.values()
    taken = {flag.name for flag in flags if Command.WATCHER in flag.commands and not flag.ignored}
    assert taken == HEEDED


def test_ops12_kube_api_qps_holds_for_the_watcher():
    """Lists, watches and reads of ConfigMaps share one client."""
    more = ["--master=http://127.0.0.1:9", "--redis-url=redis://127.0.0.1:9/0"]
    rate = ["--kube-api-qps=3", "--kube-api-burst=7"]
    throttle = build(parse(Command.WATCHER, [*more, *rate], {}))._client._throttle
    assert (throttle._qps, throttle._burst) == (3.0, 7)


def test_the_watcher_follows_what_controllers_name():
    """Registrations name all others; controllers without a driver have only the flag."""
    more = ["--master=http://127.0.0.1:9", "--redis-url=redis://127.0.0.1:9/0"]
    settings = parse(Command.WATCHER, [*more, "--controllers=resizer"], {})
    machine = build(settings).machine
    assert machine._chosen == {"resizer"}


def test_the_supervisor_hears_of_a_watcher_that_hangs(monkeypatch, tmp_path):
    """In one container with workers the watcher has no probe endpoint of its own."""
    told = []
    watcher = SimpleNamespace(check_ready=str, start=lambda: None, stop=lambda: None)
    monkeypatch.setattr(command, "build", lambda *_: watcher)
    monkeypatch.setattr(command, "tell_liveness", lambda _settings, check: told.append(check))
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    monkeypatch.setattr(signal, "sigwait", lambda _signals: signal.SIGTERM)
    more = ["--redis-url=redis://127.0.0.1:9/0", f"--state-dir={tmp_path}"]
    assert command.run(parse(Command.WATCHER, more, {})) == 0
    assert told == [HEARTBEATS.check]
