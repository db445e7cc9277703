"""Capacity publishing as data: its flags as the Go sidecar has them, and our own one."""

from __future__ import annotations

import pytest

from workers.config.flags import Command
from workers.controllers.capacity.spec import SPEC

BOTH = {Command.RUN, Command.WORKER}
SCHEDULE = {*BOTH, Command.BEAT}
# Name: kind, default, commands, upstream has it, per driver.
FLAGS = {
    "kube-api-capacity-qps": ("float", "1", BOTH, True, False),
    "kube-api-capacity-burst": ("int", "5", BOTH, True, False),
    "enable-capacity": ("bool", "false", SCHEDULE, True, False),
    "capacity-for-immediate-binding": ("bool", "false", BOTH, True, False),
    "capacity-poll-interval": ("duration", "1m", SCHEDULE, True, False),
    "capacity-ownerref-level": ("int", "1", BOTH, True, False),
    "capacity-threads": ("uint", "1", BOTH, True, True),
    "capacity-always-topology": ("bool", "false", BOTH, False, False),
}


def test_every_flag_of_capacity():
    """Section 2.1: names, defaults, where each is taken, and which a driver may have of its own."""
    found = {
        flag.name: (
            flag.kind.name.lower(), flag.default,
            set(flag.commands), flag.upstream, flag.per_driver,
        )
        for flag in SPEC.flags
    }  # fmt: skip
    assert found == FLAGS


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("capacity-poll-interval", 0.001, 0),
        ("capacity-ownerref-level", -1, -2),
    ],
)
def test_values_that_make_no_sense_are_refused(name, good, bad):
    """Exactly at the bound is good."""
    flag = next(flag for flag in SPEC.flags if flag.name == name)
    assert flag.problem(good) == ""
    assert name in flag.problem(bad)


def test_capacity_runs_within_the_provisioner():
    """One program as upstream: its flags, its exit code, its work queue's name."""
    assert (SPEC.name, SPEC.part_of, SPEC.program) == ("capacity", "provisioner", "csi-provisioner")
    (kind,) = SPEC.kinds
    assert (SPEC.fatal_code, kind.work_queue) == (255, "csistoragecapacity")
    assert (kind.name, kind.task, kind.operations) == ("capacity", "capacity.sync", ("capacity",))
