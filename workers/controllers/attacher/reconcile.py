"""Compares a driver's attachments with its ListVolumes (A-090 to A-097, MA-040).

It only finds differences. Each becomes a key of its own kind, which stays until a reconcile has
repaired it (DA-011, MA-041). A published volume without an attachment is left alone (A-096).
"""

from __future__ import annotations

import time
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.controllers.attacher import listing, records, texts
from workers.controllers.attacher.names import forced_key
from workers.controllers.attacher.nodes import annotated_id, registered_id
from workers.controllers.attacher.source import (
    AttachError,
    inline_source,
    volume_name,
    volume_source,
)
from workers.engine.outcome import done
from workers.errors import ApiError
from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from csi_client.client import CsiClient
    from workers.controllers.attacher.settings import AttacherSettings
    from workers.controllers.attacher.source import Source
    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.outcome import Outcome
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

_log = get_logger(__name__)


class Finding(StrEnum):
    """Result of comparing one attachment; a label of the metric (A-113)."""

    SAME = "same"
    DIFFERENT = "different"
    UNTOLD = "untold"  # the driver lists the volume without a status
    SKIPPED = "skipped"  # volume, node id or handle cannot be determined


_SAID: Final = "said"

GET_AT_MOST: Final = 50
"""Up to this many attachments, PVs and nodes are read one by one. Above it one list of each costs
the API server less."""


def can_compare(driver: Driver) -> bool:
    """Return True if the driver can attach and lists the nodes of its volumes (A-005)."""
    needed = ("LIST_VOLUMES", "LIST_VOLUMES_PUBLISHED_NODES", "PUBLISH_UNPUBLISH_VOLUME")
    return all(driver.supports(name) for name in needed)


def reconcile(
    context: Context, driver: Driver, key: Key, lease: Lease, settings: AttacherSettings
) -> Outcome:
    """Queue a key for every attachment whose status contradicts the driver."""
    del key
    if not can_compare(driver):
        return done("the driver does not list publications")
    started = time.monotonic()
    try:
        return compare(context, driver, lease, settings)
    finally:
        seconds = time.monotonic() - started
        context.metrics.compare_seconds.labels(driver.name).observe(seconds)


def compare(context: Context, driver: Driver, lease: Lease, settings: AttacherSettings) -> Outcome:
    """Compare once, for a driver that lists publications."""
    # Read before the listing, so that a later change shows in the resource version.
    attachments = [
        item
        for item in context.kube.list(paths.ATTACHMENTS)
        if item["spec"]["attacher"] == driver.name
    ]
    try:
        truth = listing.published(pages(context.effects.client(driver), settings))
    except CsiError as error:
        _log.error("Failed to reconcile VolumeAttachment", err=f"failed to ListVolumes: {error}")
        return done("listing failed")
    is_many = len(attachments) > GET_AT_MOST
    volumes = Objects(context, paths.VOLUMES, is_many=is_many)
    nodes = Objects(context, paths.CSI_NODES, is_many=is_many)
    findings = [finding(volumes, nodes, driver.name, item, truth) for item in attachments]
    tell(context, driver, attachments, findings)
    found = [
        item for item, one in zip(attachments, findings, strict=True) if one is Finding.DIFFERENT
    ]
    is_doubtful = listing.are_too_many(found, len(attachments))
    said = listing.summary(found) if is_doubtful else ""
    known = lease.mark.get(_SAID, "")
    if said != known:
        context.effects.reach("remember-list", lease)
        context.effects.mark(lease, {_SAID: said} if said else {})
    if said and said != known:
        refuse(context, driver, len(found), len(attachments))
        return done("too many differences")
    force(context, driver, lease, found)
    return done(f"{len(found)} differences")


def refuse(context: Context, driver: Driver, found: int, total: int) -> None:
    """Report that the differences are ignored until the next list shows the same ones."""
    words = (
        f"ListVolumes contradicts {found} of {total} VolumeAttachments, on several nodes. Nothing "
        "is repaired unless the next list says the same. If this message comes again, the driver "
        "answers differently each time: look at its ListVolumes"
    )
    _log.error("the driver contradicts too many attachments", contradicted=found, attachments=total)
    involved = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": driver.name},
    }
    context.effects.event(
        involved, "Warning", "DoubtfulListVolumes", words, component=driver.event_source
    )


class Objects:
    """The PVs or CSINodes of one comparison, read one by one or with a single list."""

    def __init__(self, context: Context, resource: Resource, *, is_many: bool) -> None:
        self._kube, self._resource, self._is_complete = context.kube, resource, is_many
        listed = self._kube.list(resource) if is_many else ()
        self._known: dict[str, JsonObject | None] = {
            item["metadata"]["name"]: item for item in listed
        }

    def get(self, name: str) -> JsonObject | None:
        """Return one object, None if it does not exist."""
        if name not in self._known and not self._is_complete:
            try:
                self._known[name] = self._kube.get(self._resource, name)
            except NotFoundError:
                self._known[name] = None
        return self._known.get(name)


def pages(client: CsiClient, settings: AttacherSettings) -> Iterator[csi.ListVolumesResponse]:
    """Read all pages; each has a deadline, and so has the whole listing (DA-010).

    Raises:
        CsiError: a page failed, a page token was repeated (TA-098), or the listing took too long.
    """
    until = time.monotonic() + settings.reconcile_timeout_seconds
    token, seen = "", set[str]()
    while True:
        request = csi.ListVolumesRequest(max_entries=settings.max_entries, starting_token=token)
        page: csi.ListVolumesResponse = client.call(
            "Controller/ListVolumes",
            request,
            csi.ListVolumesResponse,
            timeout_seconds=settings.timeout_seconds,
        )
        yield page
        token = page.next_token
        if not token:
            return
        problem = "the driver repeats a page token" if token in seen else ""
        if time.monotonic() > until:
            problem = "the listing takes longer than --reconcile-timeout"
        if problem:
            raise CsiError(errors.ABORTED, problem, rpc="/csi.v1.Controller/ListVolumes")
        seen.add(token)


def tell(
    context: Context,
    driver: Driver,
    attachments: Sequence[JsonObject],
    findings: Sequence[Finding],
) -> None:
    """Update the metrics of this comparison (A-113)."""
    for one, count in Counter(findings).items():
        context.metrics.compared.labels(driver.name, one).inc(count)
    states = Counter(map(listing.state, attachments))
    for state in listing.STATES:
        context.metrics.attachments.labels(driver.name, state).set(states[state])


def finding(
    volumes: Objects, nodes: Objects, driver: str, attachment: JsonObject, truth: listing.Published
) -> Finding:
    """Compare one attachment with the driver's list; what cannot be judged is skipped (A-093)."""
    name = attachment["metadata"]["name"]
    try:
        source = find_source(volumes, attachment)
        node_id = find_node_id(nodes, attachment, driver)
        handle = listing.listed_handle(source, node_id, driver)
    except (AttachError, listing.UnknownHandleError) as error:
        _log.warning("attachment not compared", attachment=name, err=error)
        return Finding.SKIPPED
    is_found = truth.says(handle, node_id)
    if is_found is None:
        return Finding.UNTOLD
    return Finding.DIFFERENT if listing.differs(attachment, is_found=is_found) else Finding.SAME


def find_source(volumes: Objects, attachment: JsonObject) -> Source:
    """The volume, found as a detach would find it.

    Raises:
        AttachError: the PV is missing or was replaced, or the source is invalid.
    """
    name = volume_name(attachment)
    if not name:
        return inline_source(attachment)
    volume = volumes.get(name)
    if volume is None:
        raise AttachError(texts.volume_missing(name))
    source = volume_source(volume)
    if records.is_of_another(attachment, source):
        raise AttachError(texts.volume_replaced(name))
    return source


def find_node_id(nodes: Objects, attachment: JsonObject, driver: str) -> str:
    """The node id to which a forced reconcile would send its call (A-056, A-093).

    A publish uses the node's current id, so it also reaches a node that was created again. An
    unpublish uses the id of the publish (DA-003).
    """
    known, node = annotated_id(attachment), attachment["spec"]["nodeName"]
    if known and attachment["metadata"].get("deletionTimestamp"):
        return known
    try:
        return registered_id(node, nodes.get(node), driver)
    except AttachError:
        if known:
            return known
        raise


def force(context: Context, driver: Driver, lease: Lease, attachments: list[JsonObject]) -> None:
    """Queue the attachments that have not been written since the listing began (DA-013)."""
    keys: list[Key] = []
    for item in attachments:
        metadata = item["metadata"]
        try:
            now = context.kube.get(paths.ATTACHMENTS, metadata["name"])
        except ApiError:
            continue
        if listing.stamp(now) != listing.stamp(item):
            continue
        _log.error(
            "VolumeAttachment attached status and actual state do not match. "
            "Adding back to VolumeAttachment queue for forced reprocessing",
            attachment=metadata["name"],
        )
        node = item["spec"]["nodeName"]
        keys.append(forced_key(driver.queue_name, node, metadata["name"], metadata["uid"]))
    if keys:
        context.effects.reach("add-forced", lease)
        context.queue.add(keys)
