"""Flags of several controllers in one process: name, default and value of each (STR-4)."""

from __future__ import annotations

import pytest

from tests.support.dummy.echo.rules import EchoRules
from workers.config.commandline import read_arguments
from workers.config.flags import Command, Flag, Kind
from workers.config.flagsets import flag_set
from workers.errors import ConfigError
from workers.spec import Spec


def spec(name: str, *flags: Flag, part_of: str = "") -> Spec:
    return Spec(name, f"csi-{name}", (), (), EchoRules, flags=flags, part_of=part_of)


ATTACHER = spec(
    "attacher",
    Flag("timeout", Kind.DURATION, "15s", ""),
    Flag("worker-threads", Kind.UINT, "10", ""),
    Flag("default-fstype", Kind.STRING, "", ""),
)
RESIZER = spec(
    "resizer",
    Flag("timeout", Kind.DURATION, "10s", ""),
    Flag("workers", Kind.UINT, "10", ""),
    Flag("resync-period", Kind.DURATION, "10m", ""),
)
SNAPSHOTTER = spec(
    "snapshotter",
    Flag("timeout", Kind.DURATION, "1m", ""),
    Flag("worker-threads", Kind.UINT, "10", ""),
)


def values(specs: list[Spec], *argv: str) -> dict[str, dict[str, object]]:
    """Return the values of each controller, and of the engine under ""."""
    flags = flag_set(specs)
    line = read_arguments(Command.WORKER, argv, flags)
    own = {one.name: flags.own(one, line.values, line.explicit) for one in specs}
    return own | {"": flags.common(line.values)}


def test_one_controller_has_its_sidecars_names_and_defaults():
    assert values([ATTACHER])["attacher"]["timeout"] == 15
    assert values([ATTACHER], "--timeout=5s")["attacher"]["timeout"] == 5
    assert values([ATTACHER], "--attacher-timeout=5s")["attacher"]["timeout"] == 5


def test_one_dash_is_enough_where_go_reads_flags_itself():
    """A-100, R-120, SNC-100, SNS-100: `-timeout=5s`; to pflag (csi-provisioner) that is `-t`."""
    assert values([ATTACHER], "-timeout=5s", "-v=3")["attacher"]["timeout"] == 5
    assert values([ATTACHER], "-timeout", "5s")["attacher"]["timeout"] == 5
    assert values([ATTACHER], "-v5", "-vmodule=a=1")[""]["v"] == 5
    provisioner = spec("provisioner", Flag("timeout", Kind.DURATION, "10s", ""))
    with pytest.raises(ConfigError, match="unknown shorthand flag: 't'"):
        values([provisioner], "-timeout=5s")


def test_what_differs_carries_the_controllers_name():
    own = values([ATTACHER, RESIZER], "--attacher-timeout=1s")
    assert (own["attacher"]["timeout"], own["resizer"]["timeout"]) == (1, 10)
    with pytest.raises(ConfigError, match="Use --attacher-timeout or --resizer-timeout"):
        values([ATTACHER, RESIZER], "--timeout=1s")


def test_what_is_the_same_is_one_flag_with_exceptions():
    own = values([ATTACHER, SNAPSHOTTER], "--worker-threads=3")
    assert (own["attacher"]["worker-threads"], own["snapshotter"]["worker-threads"]) == (3, 3)
    own = values([ATTACHER, SNAPSHOTTER], "--worker-threads=3", "--snapshotter-worker-threads=7")
    assert (own["attacher"]["worker-threads"], own["snapshotter"]["worker-threads"]) == (3, 7)


def test_workers_is_the_resizers_only_where_it_is_alone():
    """csi-resizer's `--workers` is not the number of csi-fleet's processes."""
    own = values([RESIZER], "--workers=4")
    assert (own["resizer"]["workers"], own[""]["workers"]) == (4, 0)
    own = values([ATTACHER, RESIZER], "--resizer-workers=5")
    assert (own["resizer"]["workers"], own[""]["workers"]) == (5, 0)
    flags = flag_set([ATTACHER, RESIZER])
    line = read_arguments(Command.RUN, ["--workers=2"], flags)
    assert flags.common(line.values)["workers"] == 2
    assert flags.own(RESIZER, line.values, line.explicit)["workers"] == 10


def test_a_common_flag_takes_the_default_of_a_controller_that_is_alone():
    assert values([RESIZER])[""]["resync-period"] == 600
    assert values([RESIZER, ATTACHER])[""]["resync-period"] == 900


def test_flags_of_a_controller_that_does_not_run_are_unknown():
    with pytest.raises(ConfigError, match="unknown flag: --default-fstype"):
        values([RESIZER], "--default-fstype=xfs")


def test_a_part_goes_by_the_name_of_its_whole():
    part = spec("half", Flag("depth", Kind.UINT, "1", ""), part_of="attacher")
    assert values([ATTACHER, part], "--attacher-depth=2")["half"]["depth"] == 2
