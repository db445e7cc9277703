"""Compares the attachments with what the driver lists (A-090 to A-097, MA-040). Pure.

Attachments may change while pages are read, and a list may be incomplete. So an attachment that
changed meanwhile is left alone, a volume without a status counts as unknown, and many differences
on several nodes are treated as a possible error of the list (DA-012).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.migration.plugins import GCE_PD, in_tree_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from csi_client import messages as csi
    from workers.controllers.attacher.source import Source
    from workers.kube.objects import JsonObject

FREE_DIFFERENCES: Final = 20
MOST_OF_ALL: Final = 0.1
"""If there are more differences than both limits (a number, a share of all attachments), on several
nodes, they are believed only when two lists in a row agree."""

_GCE: Final = re.compile(
    r"projects/(?P<project>[^/]+)/(?P<scope>zones|regions)/(?P<place>[^/]+)/disks/(?P<disk>[^/]+)"
)
_GCE_NODE: Final = re.compile(r"projects/(?P<project>[^/]+)/zones/(?P<zone>[^/]+)/instances/[^/]+")
_UNSPECIFIED: Final = "UNSPECIFIED"


class UnknownHandleError(ValueError):
    """The volume handle cannot be compared with the handles that the driver lists."""


@dataclass(frozen=True, slots=True)
class Published:
    """The content of all pages: node ids by volume, and the volumes listed without a status."""

    nodes: Mapping[str, frozenset[str]]
    unknown: frozenset[str]

    def says(self, handle: str, node_id: str) -> bool | None:
        """Return True if the volume is on the node; None if the driver reported no status."""
        if handle in self.unknown:
            return None
        return node_id in self.nodes.get(handle, frozenset())


def published(pages: Iterable[csi.ListVolumesResponse]) -> Published:
    """Merge all pages; if a volume id occurs twice, its last entry counts (A-091)."""
    nodes: dict[str, frozenset[str]] = {}
    unknown: set[str] = set()
    for page in pages:
        for entry in page.entries:
            if not entry.HasField("volume"):
                continue
            handle = entry.volume.volume_id
            if entry.HasField("status"):
                nodes[handle] = frozenset(entry.status.published_node_ids)
                unknown.discard(handle)
            else:
                unknown.add(handle)
    return Published(nodes, frozenset(unknown))


def listed_handle(source: Source, node_id: str, driver: str) -> str:
    """The handle as the driver lists it; a migrated volume's handle is completed first (A-071).

    Raises:
        UnknownHandleError: the handle cannot be completed, so the volume cannot be compared.
    """
    if not source.is_migrated:
        return source.handle
    if in_tree_name(driver) is None:
        raise UnknownHandleError(f"{driver} stands for no in-tree plugin")
    return _gce_handle(source.handle, node_id) if driver == GCE_PD.driver_name else source.handle


def _gce_handle(handle: str, node_id: str) -> str:
    """Add project and zone to a GCE handle: in-tree volumes do not name them.

    `projects/UNSPECIFIED/zones/a/disks/d` on `projects/p/zones/a/instances/n` is
    `projects/p/zones/a/disks/d`.
    """
    disk, node = _GCE.fullmatch(handle), _GCE_NODE.fullmatch(node_id)
    if disk is None:
        raise UnknownHandleError(f"volume handle {handle} has an unknown form")
    if node is None:
        raise UnknownHandleError(f"node id {node_id} has an unknown form")
    project = node["project"] if disk["project"] == _UNSPECIFIED else disk["project"]
    place = disk["place"]
    if place == _UNSPECIFIED:
        zone = node["zone"]
        place = zone if disk["scope"] == "zones" else zone.rpartition("-")[0]
    return f"projects/{project}/{disk['scope']}/{place}/disks/{disk['disk']}"


STATES: Final = ("attached", "attaching", "detaching", "failing")


def state(attachment: JsonObject) -> str:
    """Return one of `STATES`, for the metric (A-113)."""
    status = attachment.get("status") or {}
    if attachment["metadata"].get("deletionTimestamp"):
        return "failing" if status.get("detachError") else "detaching"
    if status.get("attachError"):
        return "failing"
    return "attached" if status.get("attached") else "attaching"


def differs(attachment: JsonObject, *, is_found: bool) -> bool:
    """Return True if status and driver disagree (A-094)."""
    return bool((attachment.get("status") or {}).get("attached")) != is_found


def stamp(attachment: JsonObject) -> str:
    """Uid and version, which must be unchanged when a difference is acted on (DA-013)."""
    metadata = attachment["metadata"]
    return f"{metadata['uid']} {metadata['resourceVersion']}"


def are_too_many(found: Sequence[JsonObject], total: int) -> bool:
    """Return True if an error in the list is more likely than so many wrong attachments.

    A node that was rebuilt loses all its volumes, so differences on a single node are believed.
    """
    nodes = {item["spec"]["nodeName"] for item in found}
    return len(nodes) > 1 and len(found) > max(FREE_DIFFERENCES, MOST_OF_ALL * total)


def summary(found: Iterable[JsonObject]) -> str:
    """A digest of the contradicted attachments, to be compared with that of the next list."""
    names = sorted(
        f"{item['metadata']['uid']} {bool((item.get('status') or {}).get('attached'))}"
        for item in found
    )
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
