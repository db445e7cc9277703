"""The state table of a reconcile, and the meaning of each answer: SNS-010, SNS-011, SNS-021."""

from __future__ import annotations

from typing import Any

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.support.snapshot_world import (
    ANN_CREATED,
    ANN_DELETED,
    DRIVER,
    SnapshotWorld,
    content_body,
    given_body,
)
from workers import constants as k
from workers.controllers.snapshotter import groups
from workers.controllers.snapshotter.content import GROUP_CONTENTS
from workers.controllers.snapshotter.decide import (
    Action,
    decide,
    handle_to_delete,
    is_final,
    made_nothing,
    may_have_made,
    should_delete,
)
from workers.controllers.snapshotter.intent import Intent
from workers.controllers.snapshotter.rules import KIND_GROUP_CONTENTS
from workers.controllers.snapshotter.work import ContentPass
from workers.kube import paths
from workers.queue.keys import Key

BY_HAND = {"deletionTimestamp": "t"}
WANTED = BY_HAND | {"annotations": {ANN_DELETED: "yes"}}
BARE: dict[str, Any] = {"finalizers": []}
REPORTED = {"snapshotHandle": "sh"}
MEMBER = {"annotations": {k.ANN_GROUP_HANDLE: "gh"}}
UNBOUND = {"volumeSnapshotRef": {"name": "s", "namespace": "ns"}}
OPEN, FAILED = {"has_open_call": True}, {"has_failed_call": True}

# Metadata and status of a dynamic content, the flags of its intent, and the row's action.
ROWS = {
    "wanted gone, never asked": (WANTED, None, {}, Action.RELEASE),
    "wanted gone, reported": (WANTED, REPORTED, {}, Action.DELETE),
    "wanted gone, a call is open": (WANTED, None, OPEN, Action.CREATE),
    "wanted gone, its call was reported": (WANTED, REPORTED, OPEN, Action.DELETE),
    "wanted gone, failed": (WANTED, None, FAILED, Action.LAST_CALL),
    "wanted gone, failed, reported": (WANTED, REPORTED, FAILED, Action.DELETE),
    "wanted gone, the last call is open": (WANTED, None, OPEN | FAILED, Action.LAST_CALL),
    "wanted gone, both and reported": (WANTED, REPORTED, OPEN | FAILED, Action.DELETE),
    "failed": ({}, None, FAILED, Action.CREATE),
    "failed and told": ({}, {"error": {}}, FAILED, Action.REPEAT),
    "by hand, never asked": (BY_HAND, None, {}, Action.WAIT_DELETION),
    "by hand, failed": (BY_HAND, {"error": {}}, FAILED, Action.WAIT_DELETION),
    "by hand, a call is open": (BY_HAND, None, OPEN, Action.CREATE),
    "by hand, announced": (
        BY_HAND | {"annotations": {ANN_CREATED: "yes"}},
        {"error": {}},
        {},
        Action.REPEAT,
    ),
    "by hand, reported": (BY_HAND, REPORTED, {}, Action.REPEAT),
    "without its finalizer": (BARE, None, {}, Action.WAIT_FINALIZER),
    "without its finalizer, failed": (BARE, {"error": {}}, {}, Action.WAIT_FINALIZER),
    "without its finalizer, reported": (BARE, REPORTED, {}, Action.REPEAT),
    "a member, new": (MEMBER, None, {}, Action.NOTHING),
    "a member, reported by hand": (MEMBER, REPORTED, {}, Action.NOTHING),
    "a group handle alone": ({}, {"volumeGroupSnapshotHandle": "gh"}, {}, Action.REPEAT),
}


@pytest.mark.parametrize(("metadata", "status", "record", "expected"), ROWS.values(), ids=ROWS)
def test_rows_of_a_dynamic_content(metadata, status, record, expected):
    """SNS-010, SNS-011, SND-002, SND-034: Each row of the state table has its action."""
    more = {} if status is None else {"status": status}
    assert decide(content_body(metadata=metadata, **more), **record) is expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(given_body(metadata=BY_HAND, spec=UNBOUND), True, id="nobody's"),
        pytest.param(given_body(metadata=BY_HAND), False, id="bound"),
        pytest.param(given_body(metadata=WANTED), True, id="bound, wanted gone"),
        pytest.param(content_body(metadata=BY_HAND, spec=UNBOUND), False, id="dynamic, unbound"),
        pytest.param(given_body(spec=UNBOUND), False, id="not deleted"),
    ],
)
def test_only_a_given_content_of_nobody_goes_by_itself(body, expected):
    """SNS-011, SNS-043: An unbound pre-provisioned content is deleted without the annotation."""
    assert should_delete(body) is expected


@pytest.mark.parametrize(
    ("status", "takes", "expected"),
    [
        ({"snapshotHandle": "seen"}, True, "seen"),
        ({"snapshotHandle": "seen"}, False, "seen"),
        (None, True, "sx"),
        (None, False, ""),
        ({"snapshotHandle": "seen", "volumeGroupSnapshotHandle": "g"}, True, ""),
    ],
)
def test_the_handle_that_was_seen_counts_first(status, takes, expected):
    """SNS-010 rows 1 and 2, SND-021: The status's handle is preferred to the source's handle."""
    more = {} if status is None else {"status": status}
    assert handle_to_delete(given_body(**more), takes_source_handle=takes) == expected
    kept = given_body(spec={"deletionPolicy": "Retain"}, **more)
    assert handle_to_delete(kept, takes_source_handle=takes) == ""


def error(name: str, **more: Any) -> CsiError:
    return CsiError(getattr(errors, name), "no", **more)


@pytest.mark.parametrize(
    ("answer", "final", "made", "nothing"),
    [
        pytest.param(error("NOT_FOUND"), True, False, False, id="final"),
        pytest.param(error("INTERNAL"), True, True, False, id="INTERNAL"),
        pytest.param(error("UNKNOWN"), True, True, False, id="UNKNOWN"),
        pytest.param(error("ABORTED"), False, False, False, id="open"),
        pytest.param(error("RESOURCE_EXHAUSTED"), False, False, True, id="full"),
        pytest.param(
            error("RESOURCE_EXHAUSTED", from_transport=True), False, False, False, id="too large"
        ),
        pytest.param(
            error("NOT_FOUND", from_transport=True), True, False, False, id="gRPC's, final"
        ),
        pytest.param(
            error("UNKNOWN", from_transport=True, is_final=False), False, True, False, id="broken"
        ),
        pytest.param(error("UNKNOWN", is_final=False), True, True, False, id="the driver's own"),
        pytest.param(CsiError(None, "no"), False, False, False, id="no status"),
    ],
)
def test_what_an_answer_proves(answer, final, made, nothing):
    """SNS-021, SND-032: Only an answer of the driver itself proves a final error or a full pool."""
    assert (is_final(answer), may_have_made(answer), made_nothing(answer)) == (final, made, nothing)


# The state table for groups.

KEY = Key(KIND_GROUP_CONTENTS, DRIVER, "gc")
GROUP_WANTED = BY_HAND | {"annotations": {k.ANN_GROUP_BEING_DELETED: "yes"}}
GROUP_ANNOUNCED = {"annotations": {k.ANN_GROUP_BEING_CREATED: "yes"}}
GROUP_REPORTED = {"volumeGroupSnapshotHandle": "gh"}
HANDLES = {"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "gx"}}
RECORD = Intent("n", ("a",))
RECORDS = {
    "open": RECORD,
    "failed": RECORD.as_failed(),
    "last": Intent("n", ("a",), is_failed=True),
    "full": RECORD.as_full(),
}
GROUP_ROWS = {
    "new": ({}, None, "", Action.CREATE),
    "tried": ({}, {"error": {}}, "", Action.REPEAT),
    "ready": ({}, GROUP_REPORTED | {"readyToUse": True}, "", Action.TIDY),
    "wanted gone, never asked": (GROUP_WANTED, None, "", Action.RELEASE),
    "wanted gone, reported": (GROUP_WANTED, GROUP_REPORTED, "", Action.DELETE),
    "wanted gone, open": (GROUP_WANTED, None, "open", Action.CREATE),
    "wanted gone, open, reported": (GROUP_WANTED, GROUP_REPORTED, "open", Action.DELETE),
    "wanted gone, failed": (GROUP_WANTED, None, "failed", Action.LAST_CALL),
    "wanted gone, failed, reported": (GROUP_WANTED, GROUP_REPORTED, "failed", Action.DELETE),
    "wanted gone, the last call is open": (GROUP_WANTED, None, "last", Action.LAST_CALL),
    "wanted gone, full": (GROUP_WANTED, None, "full", Action.RELEASE),
    "wanted gone, announced": (
        {**BY_HAND, "annotations": GROUP_WANTED["annotations"] | GROUP_ANNOUNCED["annotations"]},
        None,
        "",
        Action.CREATE,
    ),
    "marked, not deleted": ({"annotations": GROUP_WANTED["annotations"]}, None, "", Action.CREATE),
    "failed": ({}, None, "failed", Action.CREATE),
    "by hand": (BY_HAND, None, "", Action.WAIT_DELETION),
    "by hand, open": (BY_HAND, None, "open", Action.CREATE),
    "by hand, announced": (BY_HAND | GROUP_ANNOUNCED, None, "", Action.CREATE),
    "by hand, reported": (BY_HAND, GROUP_REPORTED, "", Action.REPEAT),
    "without its finalizer": (BARE, None, "", Action.WAIT_FINALIZER),
    "without its finalizer, reported": (BARE, GROUP_REPORTED, "", Action.REPEAT),
}


def group_pass(metadata, status, record="", *, deletes_unread=True, **spec) -> ContentPass:
    """Return a reconcile of a group content that was just read."""
    world = SnapshotWorld(deletes_unread=deletes_unread)
    body = {
        "metadata": {"name": "gc", "finalizers": [k.FINALIZER_GROUP_CONTENT]} | metadata,
        "spec": {
            "driver": DRIVER,
            "deletionPolicy": "Delete",
            "source": {"volumeHandles": ["a"]},
            "volumeGroupSnapshotRef": {"name": "g", "namespace": "ns", "uid": "gu"},
        }
        | spec,
    }
    world.api.add(paths.GROUP_SNAPSHOT_CONTENTS, body | ({} if status is None else status))
    if record:
        world.queue.marks[KEY.text] = {"intent": RECORDS[record].record()}
    lease: Any = world.lease(KEY)
    work = ContentPass(
        world.context,
        KEY,
        lease,
        GROUP_CONTENTS.resource,
        driver=world.driver,
        names=GROUP_CONTENTS,
    )
    assert work.read()
    return work


@pytest.mark.parametrize(
    ("metadata", "status", "record", "expected"), GROUP_ROWS.values(), ids=GROUP_ROWS
)
def test_rows_of_a_group_content(metadata, status, record, expected):
    """SNS-010, SNS-011, SNG-003: Each row of the state table has its action."""
    found = None if status is None else {"status": status}
    assert groups.decide(group_pass(metadata, found, record)) is expected


@pytest.mark.parametrize(
    ("uid", "policy", "deletes_unread", "expected"),
    [
        ("", "Delete", True, Action.DELETE),
        ("", "Delete", False, Action.RELEASE),
        ("", "Retain", True, Action.RELEASE),
        ("gu", "Delete", True, Action.QUERY),
    ],
)
def test_a_given_group_that_nobody_has_goes_by_its_policy(uid, policy, deletes_unread, expected):
    """SNS-011, SNS-043, SND-021: An unbound pre-provisioned group is deleted by its policy."""
    ref = {"name": "g", "namespace": "ns", "uid": uid}
    spec = {"deletionPolicy": policy, "source": HANDLES, "volumeGroupSnapshotRef": ref}
    work = group_pass(BY_HAND, None, deletes_unread=deletes_unread, **spec)
    assert groups.decide(work) is expected


def test_a_dynamic_group_that_is_not_bound_stays():
    """SNS-011: Only a pre-provisioned content can be deleted by the administrator."""
    assert not groups.should_delete(group_pass(BY_HAND, None, volumeGroupSnapshotRef={"name": "g"}))


@pytest.mark.parametrize(
    ("changes", "group_class", "expected"),
    [
        pytest.param({}, None, True, id="dynamic"),
        pytest.param({"source": HANDLES}, None, True, id="given"),
        pytest.param({"source": {}}, None, False, id="no source"),
        pytest.param({"driver": "other.test"}, None, False, id="other driver"),
        pytest.param({}, {"driver": DRIVER}, True, id="its class"),
        pytest.param({}, {"driver": "other.test"}, False, id="class of another driver"),
    ],
)
def test_whose_group_it_is(changes, group_class, expected):
    """SNS-003 for groups: A group belongs to the driver that its content and its class name."""
    content = group_pass({}, None, **changes).item
    assert groups.is_ours(content, group_class, DRIVER) is expected
