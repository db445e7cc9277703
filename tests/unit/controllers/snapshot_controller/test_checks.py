"""Pure checks of a snapshot and its content, and the controller's spec (sections 2 and 3)."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.snapshot_world import SnapshotWorld, content_body, given_body
from workers import constants as k
from workers.controllers.snapshot_controller import decide as rules
from workers.controllers.snapshot_controller import measure, nodes
from workers.controllers.snapshot_controller.controller import CONTROLLER
from workers.controllers.snapshot_controller.decide import Refusal
from workers.controllers.snapshot_controller.settings import (
    SnapshotControllerSettings,
    read_settings,
)
from workers.controllers.snapshot_controller.spec import GATES, PERMISSIONS, SPEC
from workers.explain.words import stamp
from workers.kube import paths

SOURCE, BOUND, IN_GROUP = (
    k.FINALIZER_SNAPSHOT_AS_SOURCE,
    k.FINALIZER_SNAPSHOT_BOUND,
    k.FINALIZER_SNAPSHOT_IN_GROUP,
)
FIELD = "boundVolumeSnapshotContentName"


def snapshot(*finalizers: str, source: Any = None, **status: Any) -> dict[str, Any]:
    metadata = {"name": "s", "namespace": "ns", "uid": "u1", "finalizers": list(finalizers)}
    claim = {"persistentVolumeClaimName": "p"}
    return {"metadata": metadata, "spec": {"source": source or claim}, "status": status}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"persistentVolumeClaimName": "p"}, True),
        ({"volumeSnapshotContentName": "c"}, True),
        ({"persistentVolumeClaimName": "p", "volumeSnapshotContentName": "c"}, False),
        ({"other": "x"}, False),
    ],
)
def test_one_source(source, expected):
    """SNC-020 row 3: A snapshot has exactly one source.

    SNC-073 (1) demands the same of a content's handles.
    """
    assert rules.has_one_source(snapshot(source=source)) is expected
    names = {"persistentVolumeClaimName": "volumeHandle", "volumeSnapshotContentName": "x"}
    names["volumeSnapshotContentName"] = "snapshotHandle"
    handles = {names[name]: "h" for name in source if name in names}
    assert rules.has_one_handle(content_body(spec={"source": handles})) is expected


def test_the_content_that_belongs_to_a_snapshot():
    """SNA-007: It is the content that the snapshot names, or the one that is created for it."""
    assert rules.expected_content(snapshot()) == "snapcontent-u1"
    named = snapshot(source={"volumeSnapshotContentName": "c"})
    assert rules.expected_content(named) == "c"


@pytest.mark.parametrize(
    ("bound", "policy", "has", "missing"),
    [
        ("c", "Delete", [], [SOURCE, BOUND]),
        ("c", "Delete", [SOURCE], [BOUND]),
        ("c", "Delete", [BOUND], [SOURCE]),
        ("c", "Delete", [SOURCE, BOUND], []),
        ("c", "Retain", [], [SOURCE]),
        ("", "Delete", [], [SOURCE]),
        ("", "Retain", [SOURCE], []),
        ("c", None, [], [SOURCE]),
    ],
)
def test_finalizers_that_are_missing(bound, policy, has, missing):
    """SNC-030: The second finalizer is added once the content is known and is deleted with it."""
    content = content_body(spec={"deletionPolicy": policy}) if policy else None
    found = rules.missing_finalizers(snapshot(*has, **{FIELD: bound}), content)
    assert found == missing


@pytest.mark.parametrize(
    ("waits", "leaves", "kept"),
    [
        (True, True, ["x", BOUND]),
        (False, True, ["x"]),
        (True, False, ["x", BOUND, IN_GROUP]),
        (False, False, ["x", IN_GROUP]),
    ],
)
def test_finalizers_that_stay(waits, leaves, kept):
    """SNC-058 row 7: Finalizers of other programs stay too, in their order."""
    found = snapshot("x", SOURCE, BOUND, IN_GROUP)
    assert rules.left_finalizers(found, waits_for_content=waits, leaves_group=leaves) == kept


@pytest.mark.parametrize(("ready", "bound"), list(itertools.product([False, True], ["", "c"])))
def test_settled_is_ready_and_bound(ready, bound):
    """SNC-056: A settled snapshot is ready and bound."""
    found = snapshot(readyToUse=ready, **{FIELD: bound})
    assert rules.is_settled(found) is (ready and bound == "c")


@pytest.mark.parametrize(
    ("metadata", "uid", "expected"),
    [
        ({"finalizers": []}, "u1", True),
        ({"finalizers": ["other"]}, "u1", True),
        ({}, "u1", False),
        ({"finalizers": []}, "", False),
        ({"finalizers": [], "deletionTimestamp": "t"}, "u1", False),
    ],
)
def test_who_needs_the_contents_finalizer(metadata, uid, expected):
    """SNC-073 (2), (3): A content needs it if it is bound, not being deleted, and without it."""
    ref = {"volumeSnapshotRef": {"name": "s", "uid": uid}}
    assert rules.needs_content_finalizer(given_body(metadata=metadata, spec=ref)) is expected


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ({"name": "p", "namespace": "ns", "uid": "p-uid"}, True),
        ({"name": "p", "namespace": "ns"}, True),
        ({"name": "p", "namespace": "ns", "uid": "another"}, False),
        ({"name": "q", "namespace": "ns", "uid": "p-uid"}, False),
        ({"name": "p", "namespace": "other", "uid": "p-uid"}, False),
        (None, False),
    ],
)
def test_whose_volume_it_is(ref, expected):
    """SNC-043 row 5: The volume and the claim must name each other."""
    claim = {"metadata": {"name": "p", "namespace": "ns", "uid": "p-uid"}}
    volume = {"spec": {"claimRef": ref} if ref else {}}
    assert rules.is_bound_volume(volume, claim) is expected


@pytest.mark.parametrize(
    ("claim", "ready", "except_uid", "expected"),
    [
        ("p", False, "", True),
        ("p", False, "u2", True),
        ("p", False, "u1", False),
        ("p", True, "", False),
        ("p", True, "u2", False),
        ("q", False, "", False),
        ("q", False, "u2", False),
    ],
)
def test_who_needs_a_claim(claim, ready, except_uid, expected):
    """SNC-061: An unready snapshot of the claim needs it, except the one that is being deleted."""
    found = snapshot(readyToUse=ready)
    assert rules.uses_claim(found, claim, except_uid=except_uid) is expected


def test_a_refusal_without_a_cause_of_its_own():
    """SNC-031: By default the message is the cause, and the snapshot becomes unready."""
    plain, own = Refusal("R", "told"), Refusal("R", "told", unsets_ready=False, cause="why")
    assert (plain.cause, str(plain), plain.unsets_ready) == ("told", "told", True)
    assert (own.cause, str(own), own.message, own.unsets_ready) == ("why", "why", "told", False)


# Durations.


@pytest.mark.parametrize(
    ("operation", "now", "source", "driver", "expected"),
    [
        ("CreateSnapshot", "00:01:30", "p", "d", ("d", "dynamic", 90)),
        ("DeleteSnapshot", "00:01:30", "p", "d", ("d", "dynamic", 30)),
        ("CreateSnapshot", "00:01:30", "c", "d", ("d", "pre-provisioned", 90)),
        ("DeleteSnapshot", "00:01:30", "p", None, ("unknown", "dynamic", 30)),
        ("DeleteSnapshot", "00:01:30", "p", "", ("unknown", "dynamic", 30)),
        ("CreateSnapshot", "00:01:30", "new", "d", ("d", "dynamic", 0)),
        ("CreateSnapshot", "00:00:00", "p", "d", ("d", "dynamic", 0)),
    ],
)
def test_how_long_it_took(monkeypatch, operation, now, source, driver, expected):
    """SNC-090: The duration starts at the creation or the deletion, and is never negative."""
    moment = stamp(f"2026-01-01T{now}Z")
    monkeypatch.setattr(measure, "time", SimpleNamespace(time=lambda: moment))
    given = {"volumeSnapshotContentName": "c"} if source == "c" else None
    item = snapshot(source=given)
    times = {"creationTimestamp": "00:00:00", "deletionTimestamp": "00:01:00"}
    if now == "00:00:00":
        times["creationTimestamp"] = "00:00:10"
    if source != "new":
        item["metadata"] |= {name: f"2026-01-01T{time}Z" for name, time in times.items()}
    seen: list[Any] = []

    def labels(*names: str) -> Any:
        return SimpleNamespace(observe=lambda seconds: seen.append((*names, seconds)))

    metrics = SimpleNamespace(snapshot_seconds=SimpleNamespace(labels=labels))
    work: Any = SimpleNamespace(item=item, context=SimpleNamespace(metrics=metrics))
    content = None if driver is None else {"spec": {"driver": driver}}
    measure.ended(work, operation, content)
    name, kind, seconds = expected
    assert seen == [(name, operation, kind, "success", seconds)]


# Nodes.


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([("Ready", "True")], True),
        ([("Ready", "False"), ("DiskPressure", "True")], False),
        ([("DiskPressure", "False"), ("Ready", "True")], True),
        ([("Ready", "Unknown")], False),
        ([], False),
    ],
)
def test_a_ready_node(conditions, expected):
    """SND-030: Only the node's condition Ready counts."""
    found = [{"type": name, "status": status} for name, status in conditions]
    assert nodes.is_ready({"status": {"conditions": found}}) is expected


@pytest.mark.parametrize(
    ("ready", "driver_on", "chosen"),
    [
        (["c", "b"], ["b"], "b"),
        (["c", "b"], ["c", "b"], "b"),
        (["a", "b"], ["b"], "b"),
        (["c", "b"], [], "b"),
        (["c"], ["a"], "c"),
        ([], ["b"], "a"),
        ([], [], "a"),
    ],
)
def test_which_node_takes_it(ready, driver_on, chosen):
    """SNC-080, SND-030: Ready nodes with the driver come first, then ready nodes, then any node.

    Among equal nodes the first name wins; the API server lists c first.
    """
    world = SnapshotWorld()
    for name in ("c", "b", "a"):
        condition = {"type": "Ready", "status": str(name in ready)}
        metadata = {"name": name, "labels": {"zone": "1"}}
        world.api.add(paths.NODES, {"metadata": metadata, "status": {"conditions": [condition]}})
        drivers = [{"name": "other.test"}]
        if name in driver_on:
            drivers.append({"name": "snap.test"})
        if name != "c" or drivers[1:]:  # c may have no CSINode at all
            world.api.add(
                paths.CSI_NODES, {"metadata": {"name": name}, "spec": {"drivers": drivers}}
            )
    expressions = [{"key": "zone", "operator": "In", "values": ["1"]}]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    spec = {"csi": {"driver": "snap.test"}, "nodeAffinity": {"required": terms}}
    work: Any = SimpleNamespace(context=world.context)
    assert nodes.managing_node(work, {"spec": spec}) == chosen
    del spec["nodeAffinity"]
    assert nodes.managing_node(work, {"spec": spec}) == ""


# The controller's spec.


def test_without_flags_the_settings_are_upstreams():
    """SNC-100: The defaults are upstream's."""
    found = read_settings({})
    assert found == SnapshotControllerSettings(
        worker_threads=10,
        retry_interval_start_seconds=1.0,
        retry_interval_max_seconds=300.0,
        is_distributed=False,
        keeps_volume_mode=True,
        groups=True,
    )
    assert SnapshotControllerSettings() == found
    for value in (True, False):
        gates = {"CSIVolumeGroupSnapshot": value}
        assert read_settings({"feature-gates": gates}).groups is value
    assert [(gate.name, gate.default) for gate in GATES] == [
        ("CSIVolumeGroupSnapshot", True),
        ("VolumeSnapshotTopology", False),
    ]


def test_what_is_watched():
    """Only the names and annotations of classes matter, so their metadata is enough."""
    light = {paths.SNAPSHOT_CLASSES, paths.GROUP_SNAPSHOT_CLASSES}
    assert {one.resource: one.metadata_only for one in SPEC.watches} == {
        paths.SNAPSHOTS: False,
        paths.SNAPSHOT_CONTENTS: False,
        paths.CLAIMS: False,
        paths.GROUP_SNAPSHOTS: False,
        paths.GROUP_SNAPSHOT_CONTENTS: False,
        **dict.fromkeys(light, True),
    }


def test_no_driver_and_ten_threads_for_each_kind():
    """SNC-100, SNC-110: No kind has a driver, and each has a limit of ten reconciles."""
    world = SnapshotWorld()
    assert CONTROLLER.serves(world.driver) is False
    assert SPEC.needs_driver is False
    assert [(kind.name, kind.has_driver) for kind in SPEC.kinds] == [
        ("snapshots", False),
        ("bindings", False),
        ("group-snapshots", False),
        ("group-bindings", False),
        ("snapshot-sources", False),
    ]
    assert set(CONTROLLER.limits(None).values()) == {10}
    assert list(CONTROLLER.periodic(world.context, None)) == []
    features = {"", "groups", "distributed", "cross-namespace"}
    assert {one.feature for one in PERMISSIONS} == features
