"""The sidecar's spec: flags, settings, watches, limits (SNS-100, SNS-110)."""

from __future__ import annotations

import pytest

from tests.support.snapshot_world import SnapshotWorld
from workers.config.flags import Command
from workers.controllers.snapshotter.controller import CONTROLLER
from workers.controllers.snapshotter.settings import FLAGS, NameRule, read_settings
from workers.controllers.snapshotter.spec import GATES, PERMISSIONS, SPEC, lease_name
from workers.errors import ConfigError
from workers.kube import paths

RUN = {Command.RUN, Command.WORKER}


def test_without_flags_the_settings_are_upstreams():
    """SNS-100, SND-021: The defaults are upstream's."""
    found = read_settings({})
    numbers = (
        found.timeout_seconds,
        found.retry_interval_start_seconds,
        found.retry_interval_max_seconds,
    )
    assert (*numbers, found.worker_threads) == (60.0, 1.0, 300.0, 10)
    assert (found.snapshot_name, found.group_name) == (
        NameRule("snapshot", -1),
        NameRule("groupsnapshot", -1),
    )
    assert (found.extra_metadata, found.groups, found.deletes_unread) == (False, True, True)
    assert type(found)() == found


def test_who_has_which_flag():
    """Only `delete-unread-snapshots` is csi-fleet's own: a Go sidecar would not start with it."""
    assert {flag.name for flag in FLAGS if not flag.upstream} == {"delete-unread-snapshots"}
    beside = {flag.name: flag.commands - RUN for flag in FLAGS if flag.commands > RUN}
    assert beside.pop("timeout") >= {Command.AUDIT}, "the tools that ask a driver have its deadline"
    assert beside.pop("resync-period") == {Command.WATCHER, Command.BEAT}, "the watcher looks again"
    assert beside == {"node-deployment": {Command.AUDIT}}


@pytest.mark.parametrize(
    ("kind", "title"), [("snapshot", "Snapshot"), ("groupsnapshot", "Group snapshot")]
)
def test_an_empty_prefix_says_which(kind, title):
    """SNS-110: The error names the kind of snapshot."""
    with pytest.raises(ConfigError) as caught:
        read_settings({f"{kind}-name-prefix": ""})
    assert str(caught.value) == f"{title} name prefix cannot be of length 0"


def test_the_prefix_of_groups_does_not_matter_without_groups():
    """SNS-110: The prefix is not checked if the feature gate is off."""
    off = {"feature-gates": {"CSIVolumeGroupSnapshot": False}, "groupsnapshot-name-prefix": ""}
    assert read_settings(off).group_name == NameRule("groupsnapshot")


@pytest.mark.parametrize("length", [1, 32, -1])
@pytest.mark.parametrize("kind", ["snapshot", "groupsnapshot"])
def test_lengths_that_give_a_name(kind, length):
    """SND-025: A name keeps 1 to 32 characters of the UID, or the whole UID."""
    found = read_settings({f"{kind}-name-uuid-length": length})
    rule = found.snapshot_name if kind == "snapshot" else found.group_name
    uid = "01234567-89ab-cdef-0123-456789abcdef"
    kept = uid if length == -1 else uid.replace("-", "")[:length]
    assert rule.name(uid) == f"{kind}-{kept}"


@pytest.mark.parametrize("value", [True, False])
def test_the_gate_of_groups(value):
    """SNG-005: Group snapshots are on by default."""
    gates = {"CSIVolumeGroupSnapshot": value}
    assert read_settings({"feature-gates": gates}).groups is value
    assert ("CSIVolumeGroupSnapshot", True) in [(gate.name, gate.default) for gate in GATES]


@pytest.mark.parametrize("value", [True, False])
def test_the_gate_of_topology(value):
    """SNS-120: The topology of snapshots is off by default."""
    gates = {"VolumeSnapshotTopology": value}
    assert read_settings({"feature-gates": gates}).has_topology is value
    assert not read_settings({}).has_topology
    assert ("VolumeSnapshotTopology", False) in [(gate.name, gate.default) for gate in GATES]


def test_leader_election_alone_and_nodes_alone_are_fine():
    """SNS-100: Only the combination is an error."""
    for name in ("node-deployment", "leader-election"):
        assert read_settings({name: True}) == read_settings({})


@pytest.mark.parametrize("groups", [True, False])
def test_as_many_passes_at_once_as_threads(groups):
    """Each kind has a limit of --worker-threads; switched-off groups have a limit of 0."""
    world = SnapshotWorld(groups=groups, worker_threads=4)
    wanted = {"contents": 4, "group-contents": 4 if groups else 0}
    assert CONTROLLER.limits(world.driver) == wanted
    assert read_settings({"worker-threads": 0}).worker_threads == 1


def test_nothing_of_the_engine_is_asked_for():
    """Locks are taken in the reconcile, and no periodic work is needed."""
    world = SnapshotWorld()
    assert (SPEC.needs_driver, {kind.has_driver for kind in SPEC.kinds}) == (True, {True})
    assert list(CONTROLLER.periodic(world.context, world.driver)) == []


def test_what_is_watched():
    """Only the names of classes matter, so their metadata is enough."""
    assert {one.resource: one.metadata_only for one in SPEC.watches} == {
        paths.SNAPSHOT_CONTENTS: False,
        paths.SNAPSHOT_CLASSES: True,
        paths.GROUP_SNAPSHOT_CONTENTS: False,
        paths.GROUP_SNAPSHOT_CLASSES: True,
    }


@pytest.mark.parametrize("resource", [paths.SNAPSHOT_CONTENTS, paths.GROUP_SNAPSHOT_CONTENTS])
def test_only_a_new_queue_lists_again(resource):
    """SNS-001: Unchanged queues or a removed queue cause no relist."""
    watch = next(one for one in SPEC.watches if one.resource == resource)
    one, two = {"name": "a", "queue_name": "a@1"}, {"name": "a", "queue_name": "a@2"}
    assert not watch.relists([one, two], [one, two])
    assert not watch.relists([one, two], [one])
    assert not watch.relists([], [])
    assert watch.relists([], [one])
    assert watch.relists([one], [two])


def test_secrets_and_groups_are_rights_of_their_own():
    """SNS-110: An operator who uses neither need not grant them."""
    base = {name for one in PERMISSIONS if not one.feature for name in one.resources}
    assert base == {
        *("volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshotcontents/status"),
        "events",
    }
    assert {one.feature for one in PERMISSIONS} == {"", "groups", "secrets"}


@pytest.mark.parametrize(
    ("driver", "kept"), [("a.b-c", "a-b-c"), ("Snap9_x", "Snap9-x"), ("\u00e9\u0665.d", "---d")]
)
def test_a_lease_is_called_as_the_go_sidecars(driver, kept):
    """SNS-110: ASCII letters, digits and dashes are kept."""
    assert lease_name(driver) == f"external-snapshotter-leader-{kept}"
