"""Which objects lead to which keys: the filters in the decision tables."""

from __future__ import annotations

import pytest

from tests.support.kube_objects import make_claim, make_volume, volume_json
from workers.constants import (
    ANN_SELECTED_NODE_ALPHA,
    ANN_STORAGE_CLASS_BETA,
    ANN_STORAGE_PROVISIONER_BETA,
    FINALIZER_CLONE_SOURCE,
)
from workers.controllers.provisioner.filters import (
    claim_entry,
    claim_keys,
    clone_sources,
    cloning_key,
    is_deleting_source,
    keys_of_unsaved,
    keys_of_volume,
    volume_entry,
    volume_keys,
)
from workers.controllers.provisioner.served import Drivers, DriverView
from workers.errors import AttemptError
from workers.explain.gather import find_owner
from workers.translate import volumes


def view(name, queue_name="", **more):
    """Return the watcher's view of a registered driver."""
    return DriverView.from_record({"name": name, "queue_name": queue_name or name, **more})


FOO = view("foo", in_tree_name="kubernetes.io/foo")
LIBRARY = view("own.example", add_finalizer=False, additional_names=["old.own"])
DRIVERS = Drivers.of([FOO, LIBRARY])
MODES = {"class1": "Immediate", "late": "WaitForFirstConsumer", "unset": None}


def keys_of(**fields):
    entry = claim_entry(make_claim(**fields))
    return [key.text for key in claim_keys(entry, DRIVERS, MODES)] if entry else []


WANTED = ["claims|foo|default/claim1|u1"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, WANTED, id="C-001 ours"),
        pytest.param({"provisioner": "bar"}, [], id="C-001 claim of bar"),
        pytest.param(
            {"provisioner": "kubernetes.io/foo", "migrated_to": "foo"},
            WANTED,
            id="C-006 in-tree annotation, migrated to us",
        ),
        pytest.param(
            {"provisioner": "kubernetes.io/foo"}, [], id="L-025 in-tree annotation, not migrated"
        ),
        pytest.param(
            {"provisioner": "old.own"},
            ["claims|own.example|default/claim1|u1"],
            id="C-006 additional name of a library provisioner",
        ),
        pytest.param({"volume_name": "pv"}, [], id="C-007 volumeName set"),
        pytest.param({"storage_class": "gone"}, WANTED, id="C-008 missing class is reported"),
        pytest.param(
            {"storage_class": "late", "annotations": {ANN_STORAGE_CLASS_BETA: "class1"}},
            WANTED,
            id="C-009 beta class annotation wins",
        ),
        pytest.param(
            {"storage_class": "late", "annotations": {ANN_STORAGE_CLASS_BETA: ""}},
            WANTED,
            id="C-010 empty beta class annotation wins",
        ),
        pytest.param(
            {"provisioner": "bar", "annotations": {ANN_STORAGE_PROVISIONER_BETA: "foo"}},
            [],
            id="C-011 GA annotation of another wins",
        ),
        pytest.param(
            {"provisioner": None, "annotations": {ANN_STORAGE_PROVISIONER_BETA: "foo"}},
            WANTED,
            id="C-012 beta annotation only",
        ),
        pytest.param({"provisioner": None}, [], id="C-013 no annotation"),
        pytest.param({"provisioner": None, "migrated_to": "foo"}, [], id="C-013 migrated-to alone"),
        pytest.param({"storage_class": "late"}, [], id="C-016 late binding, no node"),
        pytest.param(
            {"storage_class": "late", "selected_node": ""}, [], id="C-016 late binding, empty node"
        ),
        pytest.param(
            {"storage_class": "late", "selected_node": "node-1"}, WANTED, id="C-016 C-017 node set"
        ),
        pytest.param(
            {"storage_class": "late", "annotations": {ANN_SELECTED_NODE_ALPHA: "node-1"}},
            [],
            id="C-016 only alpha annotation",
        ),
        pytest.param({"storage_class": "unset"}, WANTED, id="L-022 row 8 nil binding mode"),
        pytest.param({"selected_node": "node-1"}, WANTED, id="C-018 immediate with node"),
        pytest.param(
            {"deletionTimestamp": "2026-01-01T00:00:00Z"}, WANTED, id="C-020 deleted but unbound"
        ),
        pytest.param({"phase": "Lost"}, WANTED, id="L-024 phase is not looked at"),
    ],
)
def test_claim_filter(fields, expected):
    """L-022, L-023, L-025: Only a claim that a driver has to provision gets a key."""
    assert keys_of(**fields) == expected


def volume_keys_of(**fields):
    entry = volume_entry(make_volume(**fields), DRIVERS)
    return [key.text for key in volume_keys(entry, DRIVERS)] if entry else []


BOUND = {"phase": "Bound", "finalizer": False}
OURS = ["volumes|foo|pv1|"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, OURS, id="C-060 released, ours"),
        pytest.param({"provisioned_by": "bar"}, [], id="C-060 released, another's"),
        pytest.param({"phase": "Bound"}, [], id="C-061 bound"),
        pytest.param({"phase": "Failed"}, [], id="C-061 failed"),
        pytest.param({"phase": "Available"}, [], id="C-061 available"),
        pytest.param({"policy": "Retain", "finalizer": False}, [], id="C-062 retain"),
        pytest.param(
            {"provisioned_by": "own.example", "finalizer": False, "deleting": True},
            [],
            id="C-065 no AddFinalizer, deleting",
        ),
        pytest.param({"deleting": True}, OURS, id="C-066 finalizer present, deleting"),
        pytest.param(
            {"deleting": True, "finalizer": False}, [], id="C-067 finalizer absent, deleting"
        ),
        pytest.param(BOUND, OURS, id="C-068 dynamically provisioned"),
        pytest.param(
            {**BOUND, "provisioned_by": None, "csi_driver": "foo"}, OURS, id="C-068 static CSI"
        ),
        pytest.param(
            {**BOUND, "provisioned_by": None, "migrated_to": "foo"},
            OURS,
            id="C-068 static in-tree migrated",
        ),
        pytest.param({"phase": "Pending", "finalizer": False}, [], id="C-069 pending"),
        pytest.param(
            {"phase": "Released", "finalizer": False, "policy": "Retain"}, [], id="C-069 released"
        ),
        pytest.param({**BOUND, "deleting": True}, [], id="C-070 bound, deleting"),
        pytest.param(
            {"provisioned_by": "own.example", "phase": "Bound"},
            ["volumes|own.example|pv1|"],
            id="C-071 roll-back removes the finalizer",
        ),
        pytest.param(
            {"policy": "Retain", "phase": "Bound"}, OURS, id="C-072 retain with finalizer"
        ),
        pytest.param(
            {"policy": "Recycle", "phase": "Bound"}, OURS, id="C-072 recycle with finalizer"
        ),
        pytest.param({**BOUND, "policy": "Delete"}, OURS, id="C-073 patched to Delete"),
        pytest.param({**BOUND, "provisioned_by": None}, [], id="C-074 static in-tree"),
        pytest.param(
            {"provisioned_by": None, "csi_driver": "bar"}, [], id="C-074 unknown CSI driver"
        ),
        pytest.param({"provisioned_by": "kubernetes.io/foo"}, OURS, id="C-075 in-tree name known"),
        pytest.param(
            {"provisioned_by": "other", "migrated_to": "foo"}, OURS, id="C-075 migrated-to known"
        ),
        pytest.param(
            {"provisioned_by": "other", "migrated_to": "bar"}, [], id="C-075 both unknown"
        ),
        pytest.param(
            {"provisioned_by": "bar", "csi_driver": "foo"}, [], id="L-071 annotation beats driver"
        ),
    ],
)
def test_volume_filter(fields, expected):
    """L-071, L-072, L-073: Only a volume that needs work gets a key."""
    assert volume_keys_of(**fields) == expected


def test_released_volume_of_a_library_provisioner_without_finalizer_is_deleted():
    """L-073 applies with AddFinalizer off."""
    expected = ["volumes|own.example|pv1|"]
    assert volume_keys_of(provisioned_by="own.example", finalizer=False) == expected


SOURCE = {"kind": "PersistentVolumeClaim", "name": "src"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"dataSource": SOURCE}, {"default/src"}, id="C-118 pending clone"),
        pytest.param({"dataSource": SOURCE, "phase": "Bound"}, set(), id="C-117 bound clone"),
        pytest.param({"dataSource": SOURCE, "phase": ""}, set(), id="CL-007 empty phase"),
        pytest.param(
            {"dataSource": SOURCE, "namespace": "b"}, {"b/src"}, id="C-119 other namespace"
        ),
        pytest.param(
            {"dataSourceRef": {**SOURCE, "namespace": "x"}}, {"x/src"}, id="CL-009 cross namespace"
        ),
        pytest.param(
            {"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}, set(), id="CL-006 no claim"
        ),
    ],
)
def test_clones_hold_their_source(fields, expected):
    """CL-006, CL-007, CL-009: A pending clone holds its source; a bound clone does not."""
    assert clone_sources(make_claim(**fields)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"finalizers": [FINALIZER_CLONE_SOURCE]}, False, id="C-121 not deleted"),
        pytest.param({"deletionTimestamp": "t"}, False, id="C-120 no finalizer"),
        pytest.param(
            {"deletionTimestamp": "t", "finalizers": ["x", FINALIZER_CLONE_SOURCE]},
            True,
            id="C-121 deleted",
        ),
    ],
)
def test_deleting_source(fields, expected):
    """CL-005: A source needs work if it is being deleted and has the cloning finalizer."""
    assert is_deleting_source(make_claim(**fields)) is expected


def test_c124_cloning_goes_to_a_driver_that_can_clone_its_own_first():
    """CL-004, CL-005: A source gets no key if no driver has CLONE_VOLUME."""
    a, b = (view(name, controller_capabilities=["CLONE_VOLUME"]) for name in "ab")
    assert cloning_key("ns/src", "u", "foo", DRIVERS) is None
    assert cloning_key("ns/src", "u", "b", Drivers.of([a, b, FOO])).text == "cloning|b|ns/src|u"
    assert cloning_key("ns/src", "u", "foo", Drivers.of([a, b, FOO])).driver == "a"


NODES = Drivers.of(
    [view("foo", f"foo@n{i}", node=f"n{i}", node_segments={"zone": f"z{i}"}) for i in (1, 2)]
)


def test_node_deployment_routes_claims_to_the_selected_node():
    """ND-003: A claim goes to the selected node's worker, or to all workers if no node is selected.

    Only immediate binding allows a claim without a selected node.
    """
    chosen = claim_entry(make_claim(selected_node="n2"))
    assert [key.driver for key in claim_keys(chosen, NODES, MODES)] == ["foo@n2"]
    unowned = claim_entry(make_claim())
    assert [key.driver for key in claim_keys(unowned, NODES, MODES)] == ["foo@n1", "foo@n2"]
    elsewhere = claim_entry(make_claim(selected_node="n9"))
    assert claim_keys(elsewhere, NODES, MODES) == []


def affinity(zone):
    expression = {"key": "zone", "operator": "In", "values": [zone]}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"nodeAffinity": affinity("z2")}, ["foo@n2"], id="C-137 affinity of n2"),
        pytest.param({"nodeAffinity": affinity("z9")}, [], id="C-137 affinity of a gone node"),
        pytest.param({}, ["foo@n1"], id="C-137 no affinity"),
    ],
)
def test_node_deployment_routes_volumes_by_affinity(spec, expected):
    """ND-012: The worker of a node that can reach the volume acts on it."""
    entry = volume_entry(make_volume(**spec), NODES)
    assert [key.driver for key in volume_keys(entry, NODES)] == expected


OWNERS = Drivers.of([view("a"), view("b")])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"provisioned_by": None, "csi_driver": "a", "migrated_to": "b"}, "a"),
        pytest.param({"provisioned_by": "a", "migrated_to": "b"}, "a"),
        pytest.param({"provisioned_by": "gone", "migrated_to": "b"}, "b"),
        pytest.param({"provisioned_by": "gone", "csi_driver": "a"}, None),
        pytest.param({"provisioned_by": None, "migrated_to": "b"}, "b"),
        pytest.param({"provisioned_by": None}, None),
    ],
)
def test_l071_watcher_worker_and_tools_agree_on_the_owner(fields, expected):
    """STR-3: Four copies of L-071 disagreed on a volume with csi.driver=a and migrated-to=b."""
    volume = volume_json(**fields)
    entry = volume_entry(make_volume(**fields), OWNERS)
    watcher = [key.driver for key in volume_keys(entry, OWNERS)] if entry else []
    worker = [name for name in ("a", "b") if volumes.is_ours(volume, {name})]
    records = {name: {"name": name, "controllers": ["provisioner"]} for name in ("a", "b")}
    tools = find_owner(records, volume)
    assert watcher == [key.driver for key in keys_of_volume(volume, OWNERS)]
    assert watcher == ([expected] if expected else [])
    # One worker may know both drivers; the first name wins.
    assert (expected in worker) if expected else not worker
    assert (tools[0] if tools[2] else None) == expected


UNSAVED = {
    "metadata": {"name": "pvc-u"},
    "spec": {
        "csi": {"driver": "foo"},
        "claimRef": {"namespace": "ns", "name": "a", "uid": "u"},
    },
}


@pytest.mark.parametrize(
    ("spec", "drivers", "expected"),
    [
        pytest.param({}, DRIVERS, ["foo"], id="one lane for the driver"),
        pytest.param({"nodeAffinity": affinity("z2")}, NODES, ["foo@n2"], id="node lane"),
        pytest.param({}, NODES, ["foo@n1"], id="any node reaches it"),
        pytest.param({"nodeAffinity": affinity("z9")}, NODES, [], id="its node is away"),
        pytest.param({}, OWNERS, [], id="nobody serves it"),
    ],
)
def test_m010_an_unsaved_volume_belongs_to_a_lane_that_somebody_serves(spec, drivers, expected):
    """STR-3: Recovery once made `claims|d|...`, which no worker of a node deployment ever takes."""
    volume = {**UNSAVED, "spec": {**UNSAVED["spec"], **spec}}
    keys = keys_of_unsaved(volume, drivers)
    assert [key.driver for key in keys] == expected
    assert {(key.object, key.uid) for key in keys} <= {("ns/a", "u")}


@pytest.mark.parametrize("spec", [{}, {"claimRef": {"name": "a"}}, {"claimRef": 3}, None])
def test_an_unsaved_volume_without_a_claim_is_refused(spec):
    """Any Redis client can write intents, so recovery logs an unusable one and continues."""
    with pytest.raises(AttemptError):
        keys_of_unsaved({"spec": spec}, DRIVERS)


@pytest.mark.parametrize(("said", "read"), [("kubernetes.io/foo", "kubernetes.io/foo"), ("", None)])
def test_a_drivers_record_tells_its_in_tree_name(said, read):
    """L-025: The watcher finds claims of the in-tree provisioner by this name."""
    assert view("foo", in_tree_name=said).in_tree_name == read
