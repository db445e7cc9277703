"""Which contents of both kinds the watcher keeps, and until when: SNS-002, SNS-010, SNS-011."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest

from tests.support.snapshot_world import DRIVER
from workers import constants as k
from workers.controllers.snapshotter.rules import SnapshotterRules
from workers.kube import paths
from workers.kube.objects import AnyObject, GroupSnapshotContent, SnapshotContent
from workers.kube.paths import Resource
from workers.spec import Forget

READY: dict[str, Any] = {"readyToUse": True}


class Names(NamedTuple):
    """The names of one of the two kinds."""

    kind: str
    resource: Resource
    classes: Resource
    item: Any
    dynamic: dict[str, Any]
    given: dict[str, Any]
    ref: str
    class_field: str
    handle: str
    created: str
    deleted: str


SINGLE = Names(
    "contents",
    paths.SNAPSHOT_CONTENTS,
    paths.SNAPSHOT_CLASSES,
    SnapshotContent,
    {"volumeHandle": "h"},
    {"snapshotHandle": "sx"},
    "volumeSnapshotRef",
    "volumeSnapshotClassName",
    "snapshotHandle",
    k.ANN_BEING_CREATED,
    k.ANN_BEING_DELETED,
)
GROUP = Names(
    "group-contents",
    paths.GROUP_SNAPSHOT_CONTENTS,
    paths.GROUP_SNAPSHOT_CLASSES,
    GroupSnapshotContent,
    {"volumeHandles": ["h"]},
    {"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "gx"}},
    "volumeGroupSnapshotRef",
    "volumeGroupSnapshotClassName",
    "volumeGroupSnapshotHandle",
    k.ANN_GROUP_BEING_CREATED,
    k.ANN_GROUP_BEING_DELETED,
)
BOTH = pytest.mark.parametrize("names", [SINGLE, GROUP], ids=lambda one: one.kind)


def rules(queue: str = DRIVER) -> SnapshotterRules:
    found = SnapshotterRules()
    found.set_drivers([{"name": DRIVER, "queue_name": queue, "node": None}])
    return found


def item(names: Names, words: str = "", *, name: str = "c", status: Any = None) -> Any:
    """Return a content with the properties in `words`.

    The words are: given, unbound, going, created, deleted, member, c2, other.
    """
    said = words.split()
    notes = {names.created: "created" in said, names.deleted: "deleted" in said}
    notes[k.ANN_GROUP_HANDLE] = "member" in said
    metadata: dict[str, Any] = {
        "name": name,
        "annotations": {note: "yes" for note, is_there in notes.items() if is_there},
    }
    if "going" in said:
        metadata["deletionTimestamp"] = "t"
    spec = {
        "driver": "other.test" if "other" in said else DRIVER,
        "source": names.given if "given" in said else names.dynamic,
        names.ref: {"name": "s", "namespace": "ns", "uid": "" if "unbound" in said else "u"},
        names.class_field: "c2" if "c2" in said else "c1",
    }
    body = {"metadata": metadata, "spec": spec} | ({} if status is None else {"status": status})
    return msgspec.convert(body, names.item)


def seen(one: SnapshotterRules, names: Names, *args: Any, **more: Any) -> list[Any]:
    return list(one.seen(names.resource, item(names, *args, **more), is_listed=False))


@BOTH
@pytest.mark.parametrize(
    ("words", "status", "has_work"),
    [
        ("", None, True),
        ("", READY, False),
        ("created", READY, True),
        ("deleted", READY, False),
        ("going", None, True),
        ("going", READY, False),
        ("going deleted", READY, True),
        ("going created", READY, True),
        ("going given unbound", READY, True),
        ("going given", READY, False),
        ("going unbound", READY, False),
        ("given unbound", READY, False),
        ("other", None, False),
    ],
)
def test_who_has_work(names, words, status, has_work):
    """SNS-003, SNS-010, SNS-011: A ready content needs no work until it is deleted."""
    one = rules()
    told = seen(one, names, words, status=status)
    assert [key.text for key in told] == [f"{names.kind}|{DRIVER}|c|"] * has_work
    assert list(one.all_keys()) == told


@BOTH
@pytest.mark.parametrize(
    ("words", "has_handle", "asks"),
    [
        ("", None, True),
        ("", False, True),
        ("", True, True),
        ("created", True, True),
        ("given", None, False),
        ("given created", None, True),
        ("other created", None, None),
    ],
)
def test_who_is_looked_for_when_it_is_gone(names, words, has_handle, asks):
    """A call or its intent may have left a snapshot; otherwise the key's counters are dropped."""
    told_handle = {names.handle: "h"} if has_handle else {"error": {"message": "no"}}
    status = None if has_handle is None else told_handle
    one = rules()
    told = list(one.gone(names.resource, item(names, words, status=status)))
    if asks is None:
        assert told == []
    else:
        (found,) = told
        assert isinstance(found, Forget) is not asks
        assert (found if asks else found.key).text == f"{names.kind}|{DRIVER}|c|"


def test_a_member_that_is_gone_left_nothing():
    """SNG-003: Only the call of its group makes a member."""
    (told,) = rules().gone(SINGLE.resource, item(SINGLE, "member"))
    assert isinstance(told, Forget)


@BOTH
def test_a_list_drops_what_it_does_not_contain(names):
    """Each dropped content gets a key, because its call may have left a snapshot."""
    one = rules()
    seen(one, names)
    (lost,) = seen(one, names, name="lost")
    one.begin_list(names.resource)
    one.begin_list(names.classes)
    assert seen(one, names) == []
    assert list(one.end_list(names.classes)) == []
    assert list(one.end_list(names.resource)) == [lost]
    assert [key.object for key in one.all_keys()] == ["c"]
    one.begin_list(names.resource)
    assert [key.object for key in one.end_list(names.resource)] == ["c"]


@BOTH
def test_only_what_failed_waits_for_its_class(names):
    """SND-029: Only failed contents of that class get a key."""
    one = rules()
    failed = {"error": {"message": "no"}}
    seen(one, names, name="waits", status={"readyToUse": False})
    seen(one, names, "c2", name="elsewhere", status=failed)
    (key,) = seen(one, names, name="failed", status=failed)
    found = AnyObject()
    found.metadata.name = "c1"
    assert list(one.seen(names.classes, found, is_listed=False)) == [key]
    assert list(one.gone(names.classes, found)) == []


@BOTH
def test_a_driver_that_serves_elsewhere_now(names):
    """SNS-001: The content now belongs to another driver queue."""
    one = rules("a")
    assert [key.driver for key in seen(one, names)] == ["a"]
    one.set_drivers([{"name": DRIVER, "queue_name": "b", "node": None}])
    assert [key.driver for key in seen(one, names)] == ["b"]
    assert seen(one, names) == []
    one.set_drivers([])
    assert seen(one, names) == []
    assert list(one.all_keys()) == []
