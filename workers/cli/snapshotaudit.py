"""Compares a driver's snapshots with the snapshot contents, for `csi-fleet audit`.

Like the audit of volumes, this audit makes two passes, but with snapshot contents instead of PVs.
It recognizes an open attempt by the content's `being-created` annotation, by the state of the
content's key, or by a slow call's ConfigMap.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from workers.constants import ANN_BEING_CREATED, ANN_GROUP_BEING_CREATED, LABEL_INTENT
from workers.controllers.snapshotter.spec import SPEC
from workers.explain.audit import Look
from workers.explain.words import stamp
from workers.kube import paths
from workers.kube.errors import ForbiddenError
from workers.queue.copies import FIELD_RECORD
from workers.queue.inspect import marks_of_driver
from workers.translate.fields import Json, annotations_of, is_deleting, object_list, text
from workers.translate.snapshot_objects import node_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from csi_client.client import CsiClient
    from workers.cli.tools import Tools
    from workers.kube.paths import Resource

# The kinds of the snapshotter's keys; importing the snapshotter's intents would load far more than
# needed.
KINDS: Final = tuple(kind.name for kind in SPEC.kinds)
_ANNOUNCED: Final = frozenset({ANN_BEING_CREATED, ANN_GROUP_BEING_CREATED})


def obstacle(tools: Tools, client: CsiClient) -> str:
    """Return the reason that snapshots cannot be audited; "" if they can.

    Raises:
        CsiError: the driver does not answer.
    """
    if "LIST_SNAPSHOTS" not in client.controller_capabilities():
        return "the driver cannot list its snapshots (no LIST_SNAPSHOTS)"
    if not tools.kube.is_served(paths.SNAPSHOT_CONTENTS):
        return "the cluster has no VolumeSnapshotContents (CRDs of external-snapshotter)"
    try:
        next(iter(tools.kube.list(paths.SNAPSHOT_CONTENTS, limit="1")), None)
    except ForbiddenError as error:
        return f"the VolumeSnapshotContents cannot be listed: {error}"
    return ""


def look(tools: Tools, client: CsiClient, driver: str) -> Look:
    """Make one pass; the driver's snapshots are listed first, as in the audit of volumes."""
    at = time.time()
    listed = {
        entry.snapshot.snapshot_id: entry.snapshot.size_bytes
        for page in client.list_snapshots(max_entries=500)
        for entry in page.entries
    }
    in_flight = dict.fromkeys(_remembered(tools, driver), 0.0)
    owners: dict[str, tuple[str, str]] = {}
    deleting: set[str] = set()
    elsewhere: set[str] = set()
    node = tools.settings.node
    for resource in (paths.SNAPSHOT_CONTENTS, paths.GROUP_SNAPSHOT_CONTENTS):
        for content in _contents(tools, resource, driver):
            name, meta = text(content, "metadata", "name"), content["metadata"]
            known = dict.fromkeys(handles_of(content), (name, meta["uid"]))
            owners = {**known, **owners}  # a member's own content outweighs its group's
            if node.enabled and node_of(content) != node.node_name:
                elsewhere.add(name)
            if is_deleting(content):
                deleting |= known.keys()
            if name in in_flight or not _ANNOUNCED.isdisjoint(annotations_of(content)):
                in_flight[name] = stamp(text(content, "metadata", "creationTimestamp")) or 0.0
    return Look(
        at,
        listed,
        in_flight,
        volumes=owners,
        deleting=frozenset(deleting),
        elsewhere=frozenset(elsewhere),
    )


def handles_of(content: Json) -> set[str]:
    """Return the snapshot ids in a VolumeSnapshotContent or a VolumeGroupSnapshotContent."""
    found = {text(content, "status", "snapshotHandle"), text(content, *_SOURCE, "snapshotHandle")}
    found |= {text(one, "snapshotHandle") for one in object_list(content, "status", _MEMBERS)}
    given = (content.get("spec") or {}).get("source", {}).get("groupSnapshotHandles") or {}
    return (found | set(given.get("volumeSnapshotHandles") or ())) - {""}


_SOURCE: Final = ("spec", "source")
_MEMBERS: Final = "volumeSnapshotInfoList"


def _contents(tools: Tools, resource: Resource, driver: str) -> Iterator[Json]:
    """Yield the driver's snapshot contents; none if their CRD is not installed."""
    if tools.kube.is_served(resource):
        for content in tools.kube.list(resource):
            if text(content, "spec", "driver") == driver:
                yield content


def _remembered(tools: Tools, driver: str) -> Iterator[str]:
    """Yield the names of contents, even deleted ones, whose last call has an unknown outcome."""
    for key, mark in marks_of_driver(tools.redis, KINDS, driver).items():
        if mark.get("intent"):
            yield _content_name(key)
    for one in tools.kube.list_config_maps(tools.settings.kube.namespace, LABEL_INTENT):
        try:
            record: Any = msgspec.json.decode((one.get("data") or {}).get(FIELD_RECORD, ""))
        except msgspec.DecodeError:
            continue
        key = str(record.get("key") or "") if isinstance(record, dict) else ""
        if key.startswith(tuple(f"{kind}|{driver}|" for kind in KINDS)):
            yield _content_name(key)


def _content_name(key: str) -> str:
    return key.split("|")[2]
