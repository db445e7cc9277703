"""Compares a driver's attachments with the driver's ListVolumes (A-090 to A-097, MA-040).

The comparison itself repairs nothing. For each difference it adds a key of a special kind, which is
kept until a reconcile has repaired the difference. A published volume without an attachment is left
alone. Attachments may change while the pages are read, and a list may be incomplete. So an
attachment that changed in the meantime is left alone, a volume without a status counts as unknown,
and if there are many differences on several nodes, the list itself may be wrong.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.controllers.attacher.attach import settings_of
from workers.controllers.attacher.names import FORCED, attachment_key
from workers.controllers.attacher.volume import (
    AttachError,
    annotated_id,
    attached_source_of,
    registered_id,
)
from workers.engine.outcome import done
from workers.errors import ApiError
from workers.kube import paths
from workers.migration.plugins import GCE_PD, in_tree_name
from workers.observability.logging import get_logger
from workers.translate.fields import is_deleting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from workers.controllers.attacher.volume import Source
    from workers.drivers.driver import Driver
    from workers.engine.live import DriverPass
    from workers.engine.outcome import Outcome
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource

    Find = Callable[[str], JsonObject | None]

_log = get_logger(__name__)

GET_AT_MOST: Final = 50
"""Up to this many attachments, PVs and nodes are read one by one. Above this number, one LIST
request for each kind costs the API server less.
"""

FREE_DIFFERENCES: Final = 20
MOST_OF_ALL: Final = 0.1
"""If the differences are on several nodes and exceed both limits (a number, and a share of all
attachments), they are trusted only when two consecutive lists agree.
"""

STATES: Final = ("attached", "attaching", "detaching", "failing")

_SUMMARY: Final = "said"  # member of the mark

_GCE: Final = re.compile(
    r"projects/(?P<project>[^/]+)/(?P<scope>zones|regions)/(?P<place>[^/]+)/disks/(?P<disk>[^/]+)"
)
_GCE_NODE: Final = re.compile(r"projects/(?P<project>[^/]+)/zones/(?P<zone>[^/]+)/instances/[^/]+")
_UNSPECIFIED: Final = "UNSPECIFIED"


class Finding(StrEnum):
    """The result of comparing one attachment; the value is also a label of the metric (A-113)."""

    SAME = "same"
    DIFFERENT = "different"
    UNTOLD = "untold"  # the driver lists the volume without a status
    SKIPPED = "skipped"  # volume, node id or handle cannot be determined


class UnknownHandleError(ValueError):
    """The volume handle cannot be compared with the handles that the driver lists."""


def can_compare(driver: Driver) -> bool:
    """Return True if the driver can attach and lists the nodes of its volumes (A-005)."""
    needed = ("LIST_VOLUMES", "LIST_VOLUMES_PUBLISHED_NODES", "PUBLISH_UNPUBLISH_VOLUME")
    return all(map(driver.supports, needed))


def compare(work: DriverPass) -> Outcome:
    """Queue a key for every attachment whose status disagrees with the driver's list."""
    if not can_compare(work.driver):
        return done("the driver does not list publications")
    started = time.monotonic()
    try:
        return compare_once(work)
    finally:
        seconds = time.monotonic() - started
        work.context.metrics.compare_seconds.labels(work.driver.name).observe(seconds)


def compare_once(work: DriverPass) -> Outcome:
    """Compare once; the driver must be able to list the nodes of its volumes."""
    driver = work.driver.name
    # The attachments are read before the volumes are listed, so that the resourceVersion reveals a
    # later change.
    attachments = [
        item
        for item in work.context.kube.list(paths.ATTACHMENTS)
        if item["spec"]["attacher"] == driver
    ]
    try:
        truth = published(pages(work))
    except CsiError as error:
        _log.error("Failed to reconcile VolumeAttachment", err=f"failed to ListVolumes: {error}")
        return done("listing failed")
    is_many = len(attachments) > GET_AT_MOST
    volumes = reader(work, paths.VOLUMES, is_many=is_many)
    nodes = reader(work, paths.CSI_NODES, is_many=is_many)
    findings = [finding(volumes, nodes, driver, item, truth) for item in attachments]
    count(work, Counter(map(state, attachments)), Counter(findings))
    different = [
        item for item, one in zip(attachments, findings, strict=True) if one is Finding.DIFFERENT
    ]
    new = summary(different) if are_too_many(different, len(attachments)) else ""
    is_confirmed = new == work.lease.mark.get(_SUMMARY, "")
    work.keep("remember-list", {_SUMMARY: new} if new else {})
    if new and not is_confirmed:
        refuse(work, len(different), len(attachments))
        return done("too many differences")
    force(work, different)
    return done(f"{len(different)} differences")


def refuse(work: DriverPass, found: int, total: int) -> None:
    """Report that the differences are ignored until the next list shows the same differences."""
    message = (
        f"ListVolumes of the driver disagrees with {found} of {total} VolumeAttachments, on "
        "several nodes. Nothing is repaired unless the next ListVolumes reports the same. If this "
        "message repeats, the driver's answer differs each time: check the driver's ListVolumes"
    )
    _log.error(
        "the driver's ListVolumes disagrees with too many VolumeAttachments",
        contradicted=found,
        attachments=total,
    )
    metadata = {"name": work.driver.name}
    involved = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": metadata}
    work.context.effects.event(
        involved, "Warning", "DoubtfulListVolumes", message, component=work.component
    )


def reader(work: DriverPass, resource: Resource, *, is_many: bool) -> Find:
    """Return a function that finds an object by name; to find many, it uses one LIST request."""
    if not is_many:
        return cache(partial(work.find, resource))
    return {item["metadata"]["name"]: item for item in work.context.kube.list(resource)}.get


def pages(work: DriverPass) -> Iterator[csi.ListVolumesResponse]:
    """Yield all pages; there is a deadline for each page and one for the whole listing.

    Raises:
        CsiError: a page failed, a page token was repeated, or the listing took too long.
    """
    settings = settings_of(work.driver)
    return work.pages(
        "Controller/ListVolumes",
        partial(csi.ListVolumesRequest, max_entries=settings.max_entries),
        csi.ListVolumesResponse,
        timeout_seconds=settings.timeout_seconds,
        most_seconds=settings.reconcile_timeout_seconds,
        too_long="the ListVolumes calls took longer than --reconcile-timeout",
    )


def count(work: DriverPass, states: Counter[str], findings: Counter[Finding]) -> None:
    """Update the metrics of this comparison (A-113)."""
    metrics, driver = work.context.metrics, work.driver.name
    for one, number in findings.items():
        metrics.compared.labels(driver, one).inc(number)
    for name in STATES:
        metrics.attachments.labels(driver, name).set(states[name])


def finding(
    volumes: Find, nodes: Find, driver: str, attachment: JsonObject, truth: Published
) -> Finding:
    """Compare one attachment with the driver's list; skip an attachment that cannot be matched."""
    name = attachment["metadata"]["name"]
    try:
        source = attached_source_of(attachment, volumes)
        node_id = find_node_id(nodes, attachment, driver)
        handle = listed_handle(source, node_id, driver)
    except (AttachError, UnknownHandleError) as error:
        _log.warning(
            "could not compare the attachment with the driver's ListVolumes",
            attachment=name,
            err=error,
        )
        return Finding.SKIPPED
    is_found = truth.says(handle, node_id)
    if is_found is None:
        return Finding.UNTOLD
    return Finding.DIFFERENT if differs(attachment, is_found=is_found) else Finding.SAME


def find_node_id(nodes: Find, attachment: JsonObject, driver: str) -> str:
    """Find the node id to which a forced reconcile would send its call (A-056, A-093).

    A publish uses the node's current id, so it also reaches a node that was recreated. An unpublish
    uses the node id with which the volume was published.
    """
    known, node = annotated_id(attachment), attachment["spec"]["nodeName"]
    if known and is_deleting(attachment):
        return known
    try:
        return registered_id(node, nodes(node), driver)
    except AttachError:
        if known:
            return known
        raise


def force(work: DriverPass, attachments: list[JsonObject]) -> None:
    """Queue the attachments that have not been written since the listing began (DA-013)."""
    keys = []
    for item in attachments:
        metadata = item["metadata"]
        try:
            now = work.context.kube.get(paths.ATTACHMENTS, metadata["name"])["metadata"]
        except ApiError:
            continue
        if any(now[part] != metadata[part] for part in ("uid", "resourceVersion")):
            continue
        _log.error(
            "VolumeAttachment attached status and actual state do not match. "
            "Adding back to VolumeAttachment queue for forced reprocessing",
            attachment=metadata["name"],
        )
        node, name, uid = item["spec"]["nodeName"], metadata["name"], metadata["uid"]
        keys.append(attachment_key(work.key.driver, node, name, uid, FORCED))
    if keys:
        work.reach("add-forced")
        work.context.queue.add(keys)


# Pure functions that read the driver's list and decide whether to trust it.


@dataclass(frozen=True, slots=True)
class Published:
    """The content of the driver's list: the volumes' node ids, and the volumes without a status."""

    nodes: Mapping[str, frozenset[str]]
    unknown: frozenset[str]

    def says(self, handle: str, node_id: str) -> bool | None:
        """Return True if the volume is on the node; None if the driver gave no status."""
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
    """Return the handle as the driver lists it; a migrated volume's handle is completed (A-071).

    Raises:
        UnknownHandleError: the handle cannot be completed, so the volume cannot be compared.
    """
    if not source.is_migrated:
        return source.handle
    if in_tree_name(driver) is None:
        raise UnknownHandleError(f"{driver} stands for no in-tree plugin")
    return _gce_handle(source.handle, node_id) if driver == GCE_PD.driver_name else source.handle


def _gce_handle(handle: str, node_id: str) -> str:
    """Add the project and the zone to a GCE handle, because in-tree volumes do not name them.

    `projects/UNSPECIFIED/zones/a/disks/d` on `projects/p/zones/a/instances/n` becomes
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


def state(attachment: JsonObject) -> str:
    """Return the attachment's state, one of `STATES`, for the metric (A-113)."""
    status = attachment.get("status") or {}
    if is_deleting(attachment):
        return "failing" if status.get("detachError") else "detaching"
    if status.get("attachError"):
        return "failing"
    return "attached" if status.get("attached") else "attaching"


def differs(attachment: JsonObject, *, is_found: bool) -> bool:
    """Return True if the attachment's status and the driver disagree (A-094)."""
    return bool((attachment.get("status") or {}).get("attached")) != is_found


def are_too_many(found: Sequence[JsonObject], total: int) -> bool:
    """Return True if an error in the list is more likely than this many wrong attachments.

    A rebuilt node loses all its volumes, so differences on a single node are trusted.
    """
    nodes = {item["spec"]["nodeName"] for item in found}
    return len(nodes) > 1 and len(found) > max(FREE_DIFFERENCES, MOST_OF_ALL * total)


def summary(found: Iterable[JsonObject]) -> str:
    """Return a digest of the attachments that differ, to compare with the next list's digest."""
    names = sorted(
        f"{item['metadata']['uid']} {bool((item.get('status') or {}).get('attached'))}"
        for item in found
    )
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
