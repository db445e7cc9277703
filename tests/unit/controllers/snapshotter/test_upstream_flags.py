"""Each flag of the two Go programs, with its own default, changes nothing (SNC-100, SNS-100)."""

from __future__ import annotations

import pytest

from workers.__main__ import drop_in
from workers.cli.run import arguments_for
from workers.config.flags import Command
from workers.config.load import parse

COMMON = """--version=false --kubeconfig=/k --leader-election=false --leader-election-namespace=
--leader-election-lease-duration=15s --leader-election-renew-deadline=10s
--leader-election-retry-period=5s --kube-api-qps=5 --kube-api-burst=10 --http-endpoint=
--metrics-path=/metrics --resync-period=15m --worker-threads=10 --retry-interval-start=1s
--retry-interval-max=5m --automaxprocs=false --v=0 --logging-format=text --log-flush-frequency=5s
--feature-gates=CSIVolumeGroupSnapshot=true,ReleaseLeaderElectionOnExit=false --vmodule="""
SIDECAR = """--csi-address=/run/csi/socket --metrics-address= --snapshot-name-prefix=snapshot
--snapshot-name-uuid-length=-1 --timeout=1m --extra-create-metadata=false --node-deployment=false
--groupsnapshot-name-prefix=groupsnapshot --groupsnapshot-name-uuid-length=-1"""
CONTROLLER = """--enable-distributed-snapshotting=false --prevent-volume-mode-conversion=true
--retry-crd-interval-max=30s"""
PROGRAMS = pytest.mark.parametrize(
    ("program", "name", "own"),
    [
        ("csi-snapshotter", "snapshotter", SIDECAR),
        ("snapshot-controller", "snapshot-controller", CONTROLLER),
    ],
)


def settings(program: str, *arguments: str):
    command, rest = drop_in([program, *arguments])
    return parse(command, rest, {})


@PROGRAMS
def test_the_defaults_are_upstreams(program, name, own):
    """A container's arguments can stay as they are and keep their meaning."""
    given = settings(program, *COMMON.split(), *own.split())
    usual = settings(program)
    assert given.chosen == usual.chosen == (name,)
    assert given.controllers == usual.controllers
    assert given.leader.enabled is usual.leader.enabled is False
    for member in ("lease_duration_seconds", "renew_deadline_seconds", "retry_period_seconds"):
        assert getattr(given.leader, member) == getattr(usual.leader, member)


@PROGRAMS
def test_each_flag_is_read(program, name, own):
    """Values other than the defaults are read."""
    own_names = {one.partition("=")[0] for one in own.split()}
    flags = ["--worker-threads=3", "--retry-interval-start=2s", "--retry-interval-max=9s"]
    if "--timeout" in own_names:
        flags += ["--timeout=7s", "--snapshot-name-prefix=p", "--extra-create-metadata"]
    else:
        flags += ["--enable-distributed-snapshotting", "--prevent-volume-mode-conversion=false"]
    found = settings(program, *flags, "--feature-gates=CSIVolumeGroupSnapshot=false")
    read = found.controllers[name]
    numbers = (
        read.worker_threads,
        read.retry_interval_start_seconds,
        read.retry_interval_max_seconds,
    )
    assert (*numbers, read.groups) == (3, 2.0, 9.0, False)
    if name == "snapshotter":
        assert (read.timeout_seconds, read.snapshot_name.name("u")) == (7.0, "p-u")
        assert read.extra_metadata is True
    else:
        assert (read.is_distributed, read.keeps_volume_mode) == (True, False)


@PROGRAMS
def test_the_watcher_learns_how_often_to_look_again(program, name, own):
    """SNA-010: The watcher does the resync."""
    command, rest = drop_in([program, "--resync-period=2s"])
    assert parse(command, rest, {}).resync_period_seconds == 2.0
    given = [f"--controllers={name}", "--resync-period=2s"]
    assert "--resync-period=2s" in arguments_for(Command.WATCHER, given)
    found = parse(Command.WATCHER, [*given, "--redis-url=redis://r"], {})
    assert found.resync_period_seconds == 2.0
