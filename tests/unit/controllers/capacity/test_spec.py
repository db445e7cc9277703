"""Capacity publishing's spec: its flags as in the Go sidecar, and csi-fleet's own flag."""

from __future__ import annotations

import pytest

from workers.config.flags import Command
from workers.controllers.capacity.spec import SPEC

BOTH = {Command.RUN, Command.WORKER}
SCHEDULE = {*BOTH, Command.BEAT}
# Name: kind, default, commands, if upstream has it, if a driver can have its own value.
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
    """Section 2.1: Names, defaults, commands, and which flags can be set per driver."""
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
    """A value exactly at the limit is accepted."""
    flag = next(flag for flag in SPEC.flags if flag.name == name)
    assert flag.problem(good) == ""
    assert name in flag.problem(bad)


def test_capacity_runs_within_the_provisioner():
    """It is one program as upstream, with the same flags, exit code and work queue name."""
    assert (SPEC.name, SPEC.part_of, SPEC.program) == ("capacity", "provisioner", "csi-provisioner")
    (kind,) = SPEC.kinds
    assert (SPEC.fatal_code, kind.work_queue) == (255, "csistoragecapacity")
    assert (kind.name, kind.task, kind.operations) == ("capacity", "capacity.sync", ("capacity",))
