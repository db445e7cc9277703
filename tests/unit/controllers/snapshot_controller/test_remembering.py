"""What the snapshot controller's rules keep and drop: SNQ-009, SNQ-013, SNC-073."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from tests.support.snapshot_world import CONTENT, content_body, given_body
from tests.unit.controllers.snapshot_controller.test_rules import (
    BINDING,
    KEY,
    SETTLED,
    TYPES,
    gone,
    listed,
    seen,
    snapshot,
    waiting,
)
from workers import constants as k
from workers.controllers.snapshot_controller.rules import SnapshotControllerRules
from workers.kube import paths
from workers.spec import Forget

SOURCE = "snapshot-sources||ns/p|"
GROUP, GROUP_BINDING = "group-snapshots||ns/g|", "group-bindings||gc|"
RETAINED = {**SETTLED, "metadata": {"finalizers": [k.FINALIZER_SNAPSHOT_AS_SOURCE]}}
GOING = {"deletionTimestamp": "t", "finalizers": [k.FINALIZER_SNAPSHOT_BOUND]}
FAILED = {"error": {"message": "no", "time": "t"}}


def all_keys(one: SnapshotControllerRules) -> list[str]:
    return sorted(key.text for key in one.all_keys())


def forgotten(one: SnapshotControllerRules, resource: Any, body: dict) -> list[str]:
    """Return the keys whose counters are dropped with the object."""
    told = one.gone(resource, msgspec.convert(body, TYPES[resource]))
    return [each.key.text for each in told if isinstance(each, Forget)]


def claim(*, held: bool = True, going: bool = False, phase: str = "Bound", **spec: Any) -> dict:
    metadata: dict[str, Any] = {"name": "p", "namespace": "ns"}
    metadata["finalizers"] = [k.FINALIZER_CLAIM_AS_SOURCE] if held else ["other"]
    if going:
        metadata["deletionTimestamp"] = "t"
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


# Snapshots.


@pytest.mark.parametrize(
    ("body", "is_open", "waits"),
    [
        pytest.param(snapshot(), True, True, id="new"),
        pytest.param(snapshot(**SETTLED), False, False, id="settled"),
        pytest.param(snapshot(**RETAINED), True, False, id="ready, policy Retain"),
        pytest.param(
            snapshot(**SETTLED | {"metadata": {"finalizers": [k.FINALIZER_SNAPSHOT_BOUND]}}),
            True,
            True,
            id="ready, unprotected",
        ),
        pytest.param(
            snapshot(**SETTLED | {"status": {"readyToUse": True}}), True, True, id="loose"
        ),
        pytest.param(snapshot(metadata=GOING), True, True, id="going"),
        pytest.param(snapshot(**SETTLED | {"metadata": GOING}), True, True, id="ready, going"),
        pytest.param(
            snapshot(metadata=GOING | {"finalizers": ["other"]}), False, False, id="others hold it"
        ),
    ],
)
def test_which_snapshots_wait(body, is_open, waits):
    """SNC-001, SNC-030: Snapshots wait until they are ready.

    In deletion they wait while they have csi-fleet's finalizers.
    """
    one = SnapshotControllerRules()
    assert seen(one, paths.SNAPSHOTS, body) == [KEY] * is_open
    assert all_keys(one) == [KEY] * waits


@pytest.mark.parametrize(
    ("owner", "group", "is_open"),
    [
        ("VolumeGroupSnapshot", "g", False),
        ("Deployment", "g", True),
        ("", "g", True),
        ("", "", False),
    ],
)
def test_a_ready_member_waits_for_its_owner(owner, group, is_open):
    """SNC-055: A ready member waits until its group is its owner."""
    owners = [{"kind": owner, "name": "g", "uid": "x"}] if owner else []
    metadata = SETTLED["metadata"] | {"ownerReferences": owners}
    status = SETTLED["status"] | ({"volumeGroupSnapshotName": group} if group else {})
    found = snapshot(metadata=metadata, status=status)
    assert seen(SnapshotControllerRules(), paths.SNAPSHOTS, found) == [KEY] * is_open


def test_a_list_of_snapshots_keeps_what_it_contains():
    """Only snapshots that still wait are kept; another snapshot of the claim gets its own key."""
    one = waiting()
    other = snapshot(metadata={"name": "s2", "uid": "u2"})
    assert seen(one, paths.SNAPSHOTS, other) == ["snapshots||ns/s2|"]
    assert listed(one, paths.SNAPSHOTS, snapshot()) == []
    assert all_keys(one) == [KEY]
    assert forgotten(one, paths.SNAPSHOTS, snapshot()) == [KEY]


@pytest.mark.parametrize("is_late", [False, True])
def test_only_bound_snapshots_can_be_misbound(is_late):
    """SNC-055 at the start: Snapshots held by others, or ready only later, don't count."""
    one = SnapshotControllerRules()
    others = snapshot(metadata=GOING | {"finalizers": ["other"]})
    assert listed(one, paths.SNAPSHOTS, *([] if is_late else [others])) == []
    assert listed(one, paths.SNAPSHOT_CONTENTS) == []
    if is_late:
        assert seen(one, paths.SNAPSHOTS, snapshot(**SETTLED)) == []
    assert listed(one, paths.SNAPSHOT_CONTENTS) == []


# Contents.


def test_a_content_that_lacks_its_finalizer_is_told_each_time():
    """SNC-073: Its reconcile may have been too early; its key is dropped with the content."""
    one = SnapshotControllerRules()
    bare = content_body(metadata={"finalizers": []})
    for _ in range(2):
        assert seen(one, paths.SNAPSHOT_CONTENTS, bare) == [BINDING]
    assert listed(one, paths.SNAPSHOT_CONTENTS, bare) == []
    assert all_keys(one) == [BINDING]
    assert forgotten(one, paths.SNAPSHOT_CONTENTS, bare) == [BINDING]
    assert all_keys(one) == []


@pytest.mark.parametrize(
    ("body", "has_work"),
    [
        (content_body(spec={"source": {}}), True),
        (given_body(metadata={"finalizers": []}), True),
        (given_body(metadata={"finalizers": []}, spec={"volumeSnapshotRef": {"name": "s"}}), False),
    ],
)
def test_more_contents_with_work_of_their_own(body, has_work):
    """SNC-073 (1), (2): A content without exactly one source or its finalizer gets a key."""
    one = SnapshotControllerRules()
    assert seen(one, paths.SNAPSHOT_CONTENTS, body) == [BINDING] * has_work


def test_a_content_of_nobody_wakes_nobody_when_it_goes():
    """Its reference has no name."""
    body = content_body(spec={"volumeSnapshotRef": {}})
    assert gone(SnapshotControllerRules(), paths.SNAPSHOT_CONTENTS, body) == []


@pytest.mark.parametrize("ends", ["gone", "not listed", "settled"])
def test_a_content_is_compared_only_with_itself(ends):
    """SNQ-009: The state is dropped with the content, or once the snapshot no longer waits."""
    one = waiting()
    cut = content_body(status={"snapshotHandle": "sh"})
    assert seen(one, paths.SNAPSHOT_CONTENTS, cut) == [KEY]
    if ends == "gone":
        gone(one, paths.SNAPSHOT_CONTENTS, cut)
    elif ends == "not listed":
        listed(one, paths.SNAPSHOT_CONTENTS)
    else:
        seen(one, paths.SNAPSHOTS, snapshot(**SETTLED))
        assert seen(one, paths.SNAPSHOT_CONTENTS, cut) == []
        seen(one, paths.SNAPSHOTS, snapshot())
    # A new content of the same name has nothing to copy when it is created.
    assert seen(one, paths.SNAPSHOT_CONTENTS, content_body(metadata={"uid": "next"})) == []


def test_a_list_that_contains_a_content_tells_nothing_new():
    """The content has not changed."""
    one = waiting()
    cut = content_body(status={"snapshotHandle": "sh"})
    seen(one, paths.SNAPSHOT_CONTENTS, cut)
    assert listed(one, paths.SNAPSHOT_CONTENTS, cut) == []
    assert seen(one, paths.SNAPSHOT_CONTENTS, cut) == []


@pytest.mark.parametrize(
    ("names", "content", "ref", "is_woken"),
    [
        pytest.param("given", "given", {"namespace": "ns", "name": "s"}, True, id="its own"),
        pytest.param("given", "given", {"namespace": "ns", "name": "s", "uid": "u"}, False, id="x"),
        pytest.param("given", "another", {"namespace": "ns", "name": "s"}, False, id="another"),
        pytest.param("", "given", {"namespace": "ns", "name": "s"}, False, id="dynamic"),
    ],
)
def test_only_an_unbound_content_that_is_named_is_waited_for(names, content, ref, is_woken):
    """SNT-029: Only a pre-provisioned, unbound content that the snapshot names adds its key."""
    source = {"volumeSnapshotContentName": names} if names else {"persistentVolumeClaimName": "p"}
    one = waiting(spec={"source": source})
    held = {"name": content, "finalizers": [k.FINALIZER_CONTENT]}
    body = given_body(metadata=held, spec={"volumeSnapshotRef": ref})
    assert seen(one, paths.SNAPSHOT_CONTENTS, body) == [KEY] * is_woken


def test_a_policy_that_changes_before_anything_was_told():
    """SNC-030: The policy counts even though the content has no status yet."""
    one = waiting()
    assert seen(one, paths.SNAPSHOT_CONTENTS, content_body()) == []
    retained = content_body(spec={"deletionPolicy": "Retain"})
    assert seen(one, paths.SNAPSHOT_CONTENTS, retained) == [KEY]


# Classes and claims.


@pytest.mark.parametrize(
    ("class_name", "status", "is_woken"),
    [
        (None, FAILED, True),
        ("c9", FAILED, False),
        ("d", FAILED, True),
        ("d", {}, False),
        ("d", FAILED | {"boundVolumeSnapshotContentName": CONTENT}, False),
    ],
)
def test_whom_a_default_class_wakes(class_name, status, is_woken):
    """SND-029: Snapshots that failed without a content, of this class or none, get a key."""
    one = SnapshotControllerRules()
    seen(
        one, paths.SNAPSHOTS, snapshot(spec={"volumeSnapshotClassName": class_name}, status=status)
    )
    note = {k.ANN_DEFAULT_SNAPSHOT_CLASS: "true"}
    found = {"metadata": {"name": "d", "annotations": note}}
    assert seen(one, paths.SNAPSHOT_CLASSES, found) == [KEY] * is_woken


def test_a_living_claim_is_left_to_the_resync():
    """SNQ-013: A deleted claim that only csi-fleet's finalizer holds gets a key on each event."""
    one = SnapshotControllerRules()
    assert seen(one, paths.CLAIMS, claim()) == []
    assert all_keys(one) == [SOURCE]
    for _ in range(2):
        assert seen(one, paths.CLAIMS, claim(going=True)) == [SOURCE]
    assert listed(one, paths.CLAIMS, claim()) == []
    assert all_keys(one) == [SOURCE]
    assert seen(one, paths.CLAIMS, claim(held=False)) == []
    assert all_keys(one) == []


@pytest.mark.parametrize("going", [False, True])
def test_a_claim_that_is_gone_is_forgotten(going):
    """Its counters are dropped too, if it had any."""
    one = SnapshotControllerRules()
    assert forgotten(one, paths.CLAIMS, claim(held=False)) == []
    seen(one, paths.CLAIMS, claim(going=going))
    assert forgotten(one, paths.CLAIMS, claim(going=going)) == [SOURCE]
    assert all_keys(one) == []
    seen(one, paths.CLAIMS, claim(going=going))
    listed(one, paths.CLAIMS)
    assert all_keys(one) == []


@pytest.mark.parametrize("going", [False, True])
@pytest.mark.parametrize("body", [SETTLED, RETAINED], ids=["settled", "ready"])
def test_the_last_snapshot_that_needs_a_claim_frees_it(going, body):
    """SNC-061, SNQ-013: Its key is added at once only if the claim waits for that."""
    one = waiting()
    assert seen(one, paths.CLAIMS, claim(going=going)) == []
    assert all_keys(one) == [KEY]
    assert seen(one, paths.SNAPSHOTS, snapshot(status={"readyToUse": False})) == []
    told = seen(one, paths.SNAPSHOTS, snapshot(**body))
    assert [each for each in told if each != KEY] == [SOURCE] * going


def test_snapshots_that_went_while_nobody_watched_free_their_claims():
    """SNQ-013: This is known only once the snapshots are listed."""
    one = waiting()
    seen(one, paths.CLAIMS, claim(going=True))
    assert listed(one, paths.SNAPSHOTS) == [SOURCE]


RESTORE = {"kind": "VolumeSnapshot", "name": "s"}


@pytest.mark.parametrize(
    ("metadata", "source", "is_woken"),
    [
        pytest.param(GOING, {"dataSource": RESTORE}, True, id="of this one"),
        pytest.param(GOING, {"dataSource": RESTORE | {"kind": "Pod"}}, False, id="no"),
        pytest.param(GOING, {"dataSource": RESTORE | {"name": "x"}}, False, id="of another"),
        pytest.param({}, {"dataSource": RESTORE}, False, id="it lives"),
        pytest.param(GOING, {}, False, id="from nothing"),
    ],
)
def test_whom_the_end_of_a_restore_wakes(metadata, source, is_woken):
    """SNC-058 row 2: Only a snapshot that is being deleted waits for the end of a restore."""
    one = waiting(metadata=metadata)
    restored = claim(held=False, **source)
    restored["metadata"]["name"] = "r"
    assert seen(one, paths.CLAIMS, restored) == [KEY] * is_woken
    assert gone(one, paths.CLAIMS, restored) == [KEY] * is_woken


# Groups.


def group(*, going: bool, ready: bool, bound: bool, held: bool) -> dict:
    metadata: dict[str, Any] = {"name": "g", "namespace": "ns"}
    metadata["finalizers"] = [k.FINALIZER_GROUP_BOUND] if held else []
    if going:
        metadata["deletionTimestamp"] = "t"
    name = {"boundVolumeGroupSnapshotContentName": "gc"} if bound else {}
    return {"metadata": metadata, "status": {"readyToUse": ready} | name}


@pytest.mark.parametrize(
    ("going", "ready", "bound", "held"), list(itertools.product([False, True], repeat=4))
)
def test_which_group_snapshots_wait(going, ready, bound, held):
    """SNG-002, SNG-004: A group waits until it is complete.

    In deletion it waits while it has csi-fleet's finalizer.
    """
    waits = held if going else not (ready and bound and held)
    one = SnapshotControllerRules()
    assert seen(one, paths.GROUP_SNAPSHOTS, {"metadata": {"name": "g", "namespace": "ns"}})
    seen(one, paths.GROUP_SNAPSHOTS, group(going=going, ready=ready, bound=bound, held=held))
    assert all_keys(one) == [GROUP] * waits


def test_lists_keep_the_groups_and_contents_they_contain():
    """Objects that are not in the list are dropped."""
    one = SnapshotControllerRules()
    found = {"metadata": {"name": "g", "namespace": "ns"}}
    seen(one, paths.GROUP_SNAPSHOTS, found)
    seen(one, paths.GROUP_SNAPSHOT_CONTENTS, group_content())
    assert listed(one, paths.GROUP_SNAPSHOTS, found) == []
    assert listed(one, paths.GROUP_SNAPSHOT_CONTENTS, group_content()) == [GROUP]
    assert seen(one, paths.GROUP_SNAPSHOT_CONTENTS, group_content()) == [GROUP_BINDING]
    assert all_keys(one) == [GROUP_BINDING, GROUP]
    assert forgotten(one, paths.GROUP_SNAPSHOTS, found) == [GROUP]
    assert all_keys(one) == [GROUP_BINDING]
    assert forgotten(one, paths.GROUP_SNAPSHOT_CONTENTS, group_content()) == [GROUP_BINDING]
    assert all_keys(one) == []


def group_content(*, uid: str = "gu", **changes: Any) -> dict:
    ref = {"name": "g", "namespace": "ns", "uid": uid}
    spec = {"volumeGroupSnapshotRef": ref, "source": {"volumeHandles": ["h"]}}
    metadata = {"name": "gc"} | changes.pop("metadata", {})
    return {"metadata": metadata, "spec": spec | changes}


HANDLES = {"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "gx"}}


@pytest.mark.parametrize(
    ("body", "has_work"),
    [
        pytest.param(group_content(), True, id="lacks its finalizer"),
        pytest.param(group_content(source=HANDLES), True, id="given, lacks it"),
        pytest.param(
            group_content(metadata={"finalizers": [k.FINALIZER_GROUP_CONTENT]}), False, id="has it"
        ),
        pytest.param(group_content(metadata={"deletionTimestamp": "t"}), False, id="going"),
        pytest.param(group_content(uid=""), False, id="not bound"),
        pytest.param(group_content(uid="", source={}), True, id="no source"),
        pytest.param(group_content(source=HANDLES | {"volumeHandles": ["h"]}), True, id="both"),
    ],
)
def test_group_contents_with_work_of_their_own(body, has_work):
    """SNC-073 for groups: A content without exactly one source or its finalizer gets a key."""
    one = SnapshotControllerRules()
    assert seen(one, paths.GROUP_SNAPSHOT_CONTENTS, body) == [GROUP_BINDING] * has_work
    assert all_keys(one) == [GROUP_BINDING] * has_work


@pytest.mark.parametrize("ends", ["gone", "not listed", "settled"])
def test_a_group_content_is_compared_only_with_itself(ends):
    """SNQ-009: After that, a content in the same state counts as changed."""
    one = SnapshotControllerRules()
    waits = group(going=False, ready=False, bound=False, held=False)
    held = group_content(metadata={"finalizers": [k.FINALIZER_GROUP_CONTENT]})
    seen(one, paths.GROUP_SNAPSHOTS, waits)
    assert seen(one, paths.GROUP_SNAPSHOT_CONTENTS, held) == [GROUP]
    assert seen(one, paths.GROUP_SNAPSHOT_CONTENTS, held) == []
    if ends == "gone":
        gone(one, paths.GROUP_SNAPSHOT_CONTENTS, held)
    elif ends == "not listed":
        listed(one, paths.GROUP_SNAPSHOT_CONTENTS)
    else:
        done = group(going=False, ready=True, bound=True, held=True)
        assert seen(one, paths.GROUP_SNAPSHOTS, done) == []
        assert seen(one, paths.GROUP_SNAPSHOT_CONTENTS, held) == []
        seen(one, paths.GROUP_SNAPSHOTS, waits)
    assert seen(one, paths.GROUP_SNAPSHOT_CONTENTS, held) == [GROUP]


def test_only_members_that_go_wait_for_their_group():
    """SNC-058 row 3: Only members in the group's namespace wait."""
    one = SnapshotControllerRules()
    seen(one, paths.SNAPSHOTS, snapshot(metadata=GOING))
    seen(one, paths.SNAPSHOTS, snapshot(metadata=GOING | {"namespace": "other"}))
    seen(one, paths.SNAPSHOTS, snapshot(metadata={"name": "lives"}))
    found = {"metadata": {"name": "g", "namespace": "ns"}}
    assert gone(one, paths.GROUP_SNAPSHOTS, found) == [KEY]
