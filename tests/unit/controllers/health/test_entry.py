"""The Go program's name and arguments, and rules that add nothing."""

from __future__ import annotations

import pytest

from workers.__main__ import drop_in
from workers.config.load import parse
from workers.controllers.health.spec import SPEC, poll_key
from workers.errors import ConfigError
from workers.kube import paths

UPSTREAM = """--monitor-interval=1m --resync=10m --timeout=15s --list-volumes-interval=5m
--volume-list-add-interval=5m --node-list-add-interval=5m --worker-threads=10
--enable-node-watcher=false --csi-address=/run/csi/socket --leader-election=false
--leader-election-lease-duration=15s --leader-election-renew-deadline=10s
--leader-election-retry-period=5s --http-endpoint= --metrics-path=/metrics --v=5"""


def settings(*arguments: str):
    command, rest = drop_in([SPEC.program, *arguments])
    return parse(command, rest, {})


def test_vh040_the_defaults_are_upstreams():
    """VHT-048, VH-040."""
    given, usual = settings(*UPSTREAM.split()), settings()
    assert given.chosen == usual.chosen == (SPEC.name,)
    assert given.controllers == usual.controllers


def test_vh040_each_flag_is_read():
    """VHT-049, VH-040."""
    read = settings(
        *("--monitor-interval=2s", "--list-volumes-interval=3s", "--timeout=4s"),
        *("--worker-threads=5", "--volume-condition", "--dropped-status-interval=6s"),
    ).controllers[SPEC.name]
    assert (read.get_seconds, read.list_seconds, read.timeout_seconds) == (2, 3, 4)
    assert (read.worker_threads, read.reads_conditions, read.dropped_seconds) == (5, True, 6)


def test_vh040_no_threads_are_refused():
    """VHT-050, VH-040."""
    with pytest.raises(ConfigError, match="must be greater than zero") as caught:
        settings("--worker-threads=0")
    assert caught.value.exit_code == 1


def test_vh041_its_lease_is_the_go_programs():
    """VHT-051, VH-041."""
    assert SPEC.lease_name is not None
    assert SPEC.lease_name("a.b/c") == "external-health-monitor-leader-a-b-c"


def test_its_rules_add_nothing():
    rules = SPEC.make_rules()
    rules.begin_list(paths.CLAIMS)
    given = (
        *rules.set_drivers([{"name": "d", "queue_name": "d"}]),
        *rules.seen(paths.CLAIMS, None, is_listed=False),
        *rules.gone(paths.CLAIMS, None),
        *rules.end_list(paths.CLAIMS),
        *rules.all_keys(),
    )
    assert given == ()
    assert poll_key("d").text.startswith("health|d|")
