"""The Go program's name and arguments: each of its flags, with its default, changes nothing."""

from __future__ import annotations

from workers.__main__ import drop_in
from workers.config.load import parse
from workers.controllers.data_source_validator.spec import SPEC

UPSTREAM = """--version=false --kubeconfig=/k --worker-threads=10 --leader-election=false
--leader-election-namespace= --leader-election-lease-duration=15s
--leader-election-renew-deadline=10s --leader-election-retry-period=5s --http-endpoint=
--metrics-path=/metrics --v=5 --logtostderr=true --vmodule="""


def settings(*arguments: str):
    command, rest = drop_in([SPEC.program, *arguments])
    return parse(command, rest, {})


def test_the_defaults_are_upstreams():
    """DV-030: The arguments of the Go program keep their meaning."""
    given, usual = settings(*UPSTREAM.split()), settings()
    assert given.chosen == usual.chosen == (SPEC.name,)
    assert given.controllers == usual.controllers
    assert given.leader.enabled is usual.leader.enabled is False
    for member in ("lease_duration_seconds", "renew_deadline_seconds", "retry_period_seconds"):
        assert getattr(given.leader, member) == getattr(usual.leader, member)


def test_each_flag_is_read():
    """DV-030: Values other than the defaults are read."""
    flags = ("--worker-threads=3", "--retry-interval-start=2s", "--retry-interval-max=9s")
    read = settings(*flags, "--leader-election").controllers[SPEC.name]
    numbers = (read.worker_threads, read.retry_interval_start_seconds)
    assert (*numbers, read.retry_interval_max_seconds) == (3, 2.0, 9.0)
    assert settings("--worker-threads=0").controllers[SPEC.name].worker_threads == 1


def test_the_arguments_of_its_manifest():
    """The arguments are those of upstream's StatefulSet."""
    found = settings("--v=5", "--leader-election=false", "--http-endpoint=:8080")
    assert found.http.endpoint == ":8080"


def test_its_lease_is_the_go_programs():
    """DV-031: The Lease has the Go program's name."""
    assert SPEC.lease_name is not None
    assert SPEC.lease_name("") == "data-source-validator-leader"
