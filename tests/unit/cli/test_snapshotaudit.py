"""What an audit counts as a snapshot's owner, and as an attempt in flight."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from csi_client import messages as csi
from tests.support.memory_api import MemoryApi
from tests.support.snapshot_world import ANN_CREATED, DRIVER, content_body, given_body
from workers.cli import snapshotaudit
from workers.config.settings import NodeSettings
from workers.constants import LABEL_SNAPSHOT_NODE
from workers.explain.audit import compare
from workers.kube import paths
from workers.kube.errors import ForbiddenError

INTENT = {"intent": {"name": "snapshot-u1", "volumes": ["h1"]}}


class Client:
    """A driver that lists its snapshots, two per page."""

    def __init__(self, *handles: str, capabilities: tuple[str, ...] = ("LIST_SNAPSHOTS",)) -> None:
        self.handles, self.capabilities = handles, frozenset(capabilities)

    def controller_capabilities(self) -> frozenset[str]:
        return self.capabilities

    def list_snapshots(self, *, max_entries: int) -> Any:
        assert max_entries > 0
        for start in range(0, len(self.handles), 2):
            page = csi.ListSnapshotsResponse()
            for handle in self.handles[start : start + 2]:
                page.entries.add().snapshot.snapshot_id = handle
            yield page


class Tools:
    """The cluster and the Redis of one audit."""

    def __init__(
        self, *contents: dict[str, Any], marks: dict[str, Any] | None = None, node: str = ""
    ) -> None:
        node_settings = NodeSettings(enabled=bool(node), node_name=node)
        self.settings = SimpleNamespace(kube=SimpleNamespace(namespace="fleet"), node=node_settings)
        self.api = MemoryApi()
        self.kube = self.api.kube
        for content in contents:
            self.api.add(paths.SNAPSHOT_CONTENTS, content)
        self.redis = self
        self.marks = marks or {}
        self.serves = True
        self.kube.is_served = lambda _: self.serves  # type: ignore[method-assign]

    def hscan_iter(self, _name: str, *, count: int) -> Any:
        assert count
        return [(key.encode(), json.dumps(mark).encode()) for key, mark in self.marks.items()]


def report(tools: Tools, *handles: str, gone: tuple[str, ...] = ()) -> Any:
    first = snapshotaudit.look(tools, Client(*handles), DRIVER)  # type: ignore[arg-type]
    left = [handle for handle in handles if handle not in gone]
    return compare(first, snapshotaudit.look(tools, Client(*left), DRIVER))  # type: ignore[arg-type]


def test_a_snapshot_without_content_and_a_content_without_snapshot():
    """SNQ-005: a snapshot that no object and no attempt accounts for is a leak."""
    made = content_body(status={"snapshotHandle": "sh"})
    lost = given_body(
        metadata={"name": "lost", "uid": "l"}, spec={"source": {"snapshotHandle": "x"}}
    )
    other = given_body(metadata={"name": "other", "uid": "o"}, spec={"driver": "else"})
    found = report(Tools(made, lost, other), "sh", "leak", "sx")
    assert sorted(found.orphans) == ["leak", "sx"]
    assert dict(found.missing) == {"lost": "x"}


def test_members_of_a_group_are_owned_before_they_have_contents():
    """SNG-002: the group's status lists them first."""
    group = {
        "metadata": {"name": "g", "uid": "g"},
        "spec": {"driver": DRIVER, "source": {"volumeHandles": ["h1"]}},
        "status": {"volumeSnapshotInfoList": [{"snapshotHandle": "m1"}]},
    }
    given = {
        "metadata": {"name": "given", "uid": "g2"},
        "spec": {
            "driver": DRIVER,
            "source": {"groupSnapshotHandles": {"volumeSnapshotHandles": ["m2"]}},
        },
    }
    tools = Tools()
    tools.api.add(paths.GROUP_SNAPSHOT_CONTENTS, group)
    tools.api.add(paths.GROUP_SNAPSHOT_CONTENTS, given)
    found = report(tools, "m1", "m2", "leak")
    assert (list(found.orphans), dict(found.missing)) == (["leak"], {})


@pytest.mark.parametrize("way", ["annotation", "mark", "copy"])
def test_an_attempt_in_flight_may_own_any_snapshot(way):
    """SNQ-005: it is announced on the object, or known only to Redis or an intent copy."""
    announced = {"annotations": {ANN_CREATED: "yes"}}
    key = f"contents|{DRIVER}|gone|"
    tools = Tools(
        *([content_body(metadata=announced)] if way == "annotation" else []),
        marks={key: INTENT} if way == "mark" else {"contents|else|x|": INTENT, key: {"polls": 3}},
    )
    if way == "copy":
        metadata = {
            "name": "copy",
            "namespace": "fleet",
            "labels": {snapshotaudit.LABEL_INTENT: "true"},
        }
        record = json.dumps({"key": key, **INTENT["intent"]})
        tools.api.add(paths.CONFIG_MAPS, {"metadata": metadata, "data": {"record": record}})
    found = report(tools, "leak")
    assert (dict(found.orphans), found.undecided) == ({}, 1)


def test_a_snapshot_that_is_being_deleted_is_not_missing():
    """The driver deletes the snapshot first, and the content is removed afterwards."""
    going = content_body(status={"snapshotHandle": "sh"})
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert report(Tools(going)).missing == {}


def test_what_cannot_be_audited_is_said():
    """LIST_SNAPSHOTS, CRDs or permission may be missing; volumes are audited anyway."""
    tools = Tools()
    assert "LIST_SNAPSHOTS" in snapshotaudit.obstacle(tools, Client(capabilities=()))  # type: ignore[arg-type]
    assert snapshotaudit.obstacle(tools, Client()) == ""  # type: ignore[arg-type]
    tools.api.fail("get", "volumesnapshotcontents", ForbiddenError(403, "Forbidden", "no"))
    assert "cannot be listed" in snapshotaudit.obstacle(tools, Client())  # type: ignore[arg-type]
    tools.serves = False
    assert "CRDs" in snapshotaudit.obstacle(tools, Client())  # type: ignore[arg-type]


def test_another_node_s_contents_are_not_looked_for_in_this_node_s_storage():
    """SNS-001: in node deployment each content's label names its node."""
    lost = [
        given_body(
            metadata={"name": f"lost-{node}", "uid": node, "labels": {LABEL_SNAPSHOT_NODE: node}},
            spec={"source": {"snapshotHandle": f"s-{node}"}},
        )
        for node in ("a", "b")
    ]
    assert dict(report(Tools(*lost, node="a")).missing) == {"lost-a": "s-a"}
    assert len(report(Tools(*lost)).missing) == 2
