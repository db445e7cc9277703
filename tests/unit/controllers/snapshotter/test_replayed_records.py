"""Each kind of record that the snapshotter keeps is written back later: key states and copies."""

from __future__ import annotations

from copy import deepcopy
from typing import ClassVar

import pytest

from tests.support.snapshot_world import CONTENT, CONTENT_KEY, CUT, DRIVER, SnapshotWorld
from tests.unit.controllers.snapshotter.test_group_contents import KEY, MADE, dynamic_world, run
from tests.unit.controllers.snapshotter.test_replays import LATE, copies
from workers.controllers.snapshotter.spec import SPEC
from workers.kube import paths

READY = {"group_snapshot": MADE["group_snapshot"] | {"ready_to_use": True}}


class Single:
    """A snapshot."""

    key, name, resource, call = CONTENT_KEY, CONTENT, paths.SNAPSHOT_CONTENTS, "CreateSnapshot"
    answered: ClassVar = {"handle": "sh"}
    source: ClassVar = {"snapshotHandle": "sh"}

    def __init__(self):
        self.world = SnapshotWorld()
        self.world.add_content(spec={"deletionPolicy": "Retain"})
        self.world.client.respond({self.call: [LATE, CUT]})

    def run(self):
        return self.world.run_content()


class Group:
    """A group snapshot."""

    key, name, resource = KEY, "gc", paths.GROUP_SNAPSHOT_CONTENTS
    answered: ClassVar = {"handle": "gh", "members": ["s"]}
    source: ClassVar = {
        "groupSnapshotHandles": {
            "volumeGroupSnapshotHandle": "gh",
            "volumeSnapshotHandles": ["s"],
        }
    }

    def __init__(self):
        self.world = dynamic_world(LATE, READY, policy="Retain")

    def run(self):
        return run(self.world)


KINDS = {one.key.kind: one for one in (Single, Group)}
RECORDS = ["mark of the call", "mark with the answer", "copy", "mark and copy"]


def test_each_kind_that_keeps_a_record_is_tried():
    assert KINDS.keys() == {kind.name for kind in SPEC.kinds if kind.operations}


@pytest.fixture
def taken():
    """Return a factory of objects that have their snapshot, and of their earlier records."""

    def make(kind):
        one = KINDS[kind]()
        one.run()
        marks, (path,) = one.world.queue.marks, copies(one.world)
        called, backup = deepcopy(marks[one.key.text]), deepcopy(one.world.api.objects[path])
        one.run()
        assert (marks, copies(one.world)) == ({}, [])
        assert one.world.api.of(one.resource, one.name)["status"]["readyToUse"] is True
        answered = deepcopy(called)
        answered["intent"] |= {**one.answered, "deadline": []}
        del backup["metadata"]["uid"]
        one.world.client.calls.clear()
        one.world.passed = 600

        def put_back(what):
            if "mark" in what:
                marks[one.key.text] = deepcopy(answered if "answer" in what else called)
            if "copy" in what and not copies(one.world):
                one.world.api.add(paths.CONFIG_MAPS, deepcopy(backup))

        return one, put_back

    return make


def ended(one):
    """The object has its snapshot, and nothing else changes."""


def kept(one):
    """The administrator keeps the snapshot and deletes the objects."""
    one.world.api.drop(one.resource, one.name)


def handed_over(one):
    """As in `kept`, and another content names the snapshot."""
    kept(one)
    spec = {"driver": DRIVER, "source": one.source}
    one.world.api.add(one.resource, {"metadata": {"name": "backup"}, "spec": spec})


def long_ago(one):
    """As in `kept`, and the API server no longer has the history of the deletion."""
    kept(one)
    one.world.api.deleted.clear()


def of_another_driver(one):
    """As in `long_ago`; then a worker of another driver made and deleted an object of that name."""
    long_ago(one)
    one.world.api.add(
        one.resource, {"metadata": {"name": one.name}, "spec": {"driver": "other.example.org"}}
    )
    one.world.api.drop(one.resource, one.name)


@pytest.mark.parametrize("situation", [ended, kept, handed_over, long_ago, of_another_driver])
@pytest.mark.parametrize("what", RECORDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_put_back_leads_to_no_call(taken, kind, what, situation):
    """SEC2-1: Neither a deletion nor a second snapshot is requested."""
    one, put_back = taken(kind)
    situation(one)
    for _ in range(3):
        put_back(what)
        one.run()
        assert one.world.client.methods == []


@pytest.mark.parametrize("what", ["mark of the call", "mark with the answer"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_mark_of_an_attempt_that_has_ended_goes(taken, kind, what):
    """Otherwise the audit counts its snapshot as in flight and reports no orphans of the driver."""
    one, put_back = taken(kind)
    kept(one)
    put_back(what)
    one.run()
    assert one.world.queue.marks == {}


@pytest.mark.parametrize("kind", KINDS)
def test_an_open_attempt_is_ended_whoever_puts_its_record_back(kind):
    """The object was removed by force, and the key's state was lost."""
    one = KINDS[kind]()
    one.run()
    mark = deepcopy(one.world.queue.marks[one.key.text])
    kept(one)
    one.world.queue.marks.clear()
    one.world.queue.marks[one.key.text] = mark
    one.world.passed = 600
    one.run()
    assert (one.world.queue.marks, copies(one.world)) == ({}, [])


OTHER_GROUP = {"volumeGroupSnapshotHandle": "other", "volumeSnapshotHandles": ["s"]}


@pytest.mark.parametrize(
    ("kind", "resource", "source"),
    [
        (Single, paths.SNAPSHOT_CONTENTS, Single.source),
        (Group, paths.GROUP_SNAPSHOT_CONTENTS, Group.source),
        (Group, paths.GROUP_SNAPSHOT_CONTENTS, {"groupSnapshotHandles": OTHER_GROUP}),
        (Group, paths.SNAPSHOT_CONTENTS, {"snapshotHandle": "s"}),
    ],
    ids=["the snapshot", "the group", "a member in another group", "a member alone"],
)
def test_what_a_live_object_names_is_not_deleted_with_its_open_attempt(kind, resource, source):
    one = kind()
    one.run()
    kept(one)
    spec = {"driver": DRIVER, "source": source}
    one.world.api.add(resource, {"metadata": {"name": "backup"}, "spec": spec})
    one.world.passed = 600
    assert one.run().reason == "in use"
    assert not any(method.startswith("Delete") for method in one.world.client.methods)
