"""Reconciles one capacity key: an item, an obsolete object, a deleted object or the plan (CAP-040).

A key is `capacity|<queue name>|<text>|`. The text is the string form of an `Item` or an `Obsolete`,
or one of `poll`, `plan` and `gone:<uid>`. A reconcile may safely run twice or stop at any point,
because all workers use the same names, deletions are conditional on the uid, updates are
conditional on the resourceVersion, and the next plan lists the real objects.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from csi_client.errors import CsiError
from workers.constants import LABEL_DRIVER_NAME, LABEL_MANAGED_BY
from workers.controllers.capacity.items import Item, Obsolete, parse_text
from workers.controllers.capacity.objects import (
    capacity_request,
    desired_object,
    object_names,
    sizes_of,
    updated_object,
)
from workers.controllers.capacity.plan import make_plan
from workers.controllers.capacity.publishing import PLAN, POLL, digest_of, publishing_of
from workers.engine.outcome import Action, Outcome, done, retry, wait
from workers.errors import AttemptError, CatalogIncomplete
from workers.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from workers.observability.logging import get_logger
from workers.queue.catalogkinds import KIND_CLASSES
from workers.queue.keys import capacity_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.controllers.capacity.objects import Sizes
    from workers.controllers.capacity.publishing import Publishing
    from workers.drivers.driver import Driver
    from workers.engine.context import Runtime
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

_log = get_logger(__name__)

GONE: Final = "gone:"
_UPDATE_TRIES: Final = 3
# How long a key waits if only the driver's other workers publish capacity, for example while flags
# are being changed.
_NOT_HERE_SECONDS: Final = 5.0
_CATALOG_SECONDS: Final = 0.1


def sync_capacity(runtime: Runtime, driver: Driver, key: Key, lease: Lease) -> Outcome:
    """Reconciles one capacity key."""
    publishing = publishing_of(runtime)
    if publishing is None:
        return wait(_NOT_HERE_SECONDS, "capacity is not published by this worker")
    if not publishing.publishes(driver):
        return done("capacity is not published")
    work = CapacityPass(runtime, publishing, driver, lease)
    if key.object in {POLL, PLAN}:
        return work.plan(is_poll=key.object == POLL)
    if key.object.startswith(GONE):
        return work.gone(key.object.removeprefix(GONE))
    try:
        item = parse_text(key.object)
    except ValueError as error:
        _log.warning("dropped the key of a capacity object", err=error)
        return done("unreadable")
    return work.delete(item.name) if isinstance(item, Obsolete) else work.publish(item)


class CapacityPass:
    """One reconcile of one capacity key, under its lease."""

    def __init__(
        self, runtime: Runtime, publishing: Publishing, driver: Driver, lease: Lease
    ) -> None:
        self.runtime = runtime
        self.publishing = publishing
        self.driver = driver
        self.lease = lease
        self.queue_name = driver.queue_name
        self.publisher = publishing.publisher(driver)
        self.store = publishing.store

    # The plan.

    def plan(self, *, is_poll: bool) -> Outcome:
        """Compare wanted items with existing objects; add keys for the differences (CAP-055).

        A poll adds every item, so that the driver is called again for each item. A plan adds only
        items without an object and the items of a recreated class.
        """
        publishing, state = self.publishing, self.lease.catalog
        try:
            wanted = publishing.wanted(self.driver, state)
            uids = publishing.class_uids(wanted, state)
        except CatalogIncomplete:
            # This is normal at startup, because the watcher lists nodes only once a driver needs
            # them.
            return wait(_CATALOG_SECONDS, "the catalog is not complete yet")
        noticed = self.store.noticed(self.queue_name) or {}
        known_uids = noticed.get("classes") or {}
        record = {"digest": digest_of(wanted, uids), "classes": known_uids}
        # The digest is stored before the objects are listed, so that a later change leads to
        # another plan.
        self.store.notice(self.queue_name, record)
        before = self.store.all(self.queue_name)
        plan = make_plan(wanted, self.list_objects(), self.publisher)
        self.lease.check()
        self.store.replace(
            self.queue_name,
            before,
            {item.text: slim(one) for item, one in plan.assigned.items()},
            {one["metadata"]["name"]: one["metadata"]["uid"] for one in plan.obsolete},
        )
        changed = {name for name, uid in uids.items() if known_uids.get(name, uid) != uid}
        items = [*plan.missing]
        items += [item for item in plan.assigned if is_poll or item.storage_class in changed]
        self.add(items, plan.obsolete)
        self.store.notice(self.queue_name, {**record, "classes": uids})
        return done("planned")

    def add(self, items: list[Item], obsolete: tuple[JsonObject, ...]) -> None:
        """Add the keys of a plan, deletions first; omit keys that are waiting to be retried."""
        keys = [
            capacity_key(self.queue_name, Obsolete(one["metadata"]["name"]).text)
            for one in obsolete
        ]
        keys += [capacity_key(self.queue_name, item.text) for item in items]
        postponed = self.store.postponed(keys)
        self.runtime.queue.add(key for key in keys if key not in postponed)

    def list_objects(self) -> list[JsonObject]:
        """List the driver's objects live (CAP-003)."""
        labels = self.publisher.labels
        selector = ",".join(
            f"{name}={labels[name]}" for name in (LABEL_DRIVER_NAME, LABEL_MANAGED_BY)
        )
        return list(
            self.runtime.kube.list(
                self.publishing.resource,
                namespace=self.publisher.namespace,
                labelSelector=selector,
            )
        )

    # One item.

    def publish(self, item: Item) -> Outcome:
        """Call GetCapacity and write changed sizes; keep the old sizes on an error (CAP-040)."""
        state = self.lease.catalog
        if item not in self.publishing.wanted(self.driver, state):
            return done("not wanted")
        storage_class = self.runtime.catalog.get(KIND_CLASSES, item.storage_class, state)
        if storage_class is None:
            return done("class is gone")
        is_planned, existing = self.store.known(self.queue_name, item.text)
        if not is_planned:
            self.runtime.queue.add([capacity_key(self.queue_name, PLAN)])
            return done("waits for the plan")
        request = capacity_request(
            storage_class,
            item.segment,
            has_topology="VOLUME_ACCESSIBILITY_CONSTRAINTS" in self.driver.plugin_capabilities,
            always_send_topology=self.runtime.settings.capacity.always_topology,
        )
        try:
            sizes = sizes_of(self.runtime.effects.client(self.driver).get_capacity(request))
        except (CsiError, AttemptError) as error:
            _log.warning("could not get the capacity from the driver", item=item.text, err=error)
            return self.failed(is_published=existing is not None)
        if existing is not None:
            return self.update(item, existing, sizes)
        # If the call was slow, the item may no longer be wanted. In that case no object is created,
        # because it would remain until the next poll.
        if item not in self.publishing.wanted(self.driver):
            return done("not wanted any more")
        return self.create(item, sizes)

    def failed(self, *, is_published: bool) -> Outcome:
        """Return the back-off, which starts at half the interval if no object exists (CAP-033).

        csi-provisioner starts several chains of retries for a new item (CAP-032), so it publishes
        the first value sooner than a single chain of full intervals would.
        """
        start = self.driver.settings.provision.retry_interval_start_seconds
        return Outcome(
            Action.RETRY,
            base_seconds=start if is_published else start / 2,
            reason="GetCapacity failed",
        )

    def create(self, item: Item, sizes: Sizes) -> Outcome:
        """Create the object, or adopt and update the item's existing object (M-014)."""
        for name in object_names(self.publisher, item):
            body = desired_object(self.publisher, item, sizes, name)
            self.turn()
            try:
                self.keep(item, self.runtime.effects.kube.create(self.publishing.resource, body))
            except AlreadyExistsError:
                found = self.read(name)
                if found is not None and self.is_adoptable(found, item):
                    self.keep(item, found)
                    return self.update(item, found, sizes)
                continue
            return done("created")
        return retry("no free name")

    def update(self, item: Item, existing: JsonObject, sizes: Sizes) -> Outcome:
        """Write the sizes and the owner if they differ; re-read and retry on a conflict (C-108).

        The live object is read before each write, because the data in Redis may be forged.
        """
        if updated_object(self.publisher, existing, sizes) is None:
            return done("unchanged")
        for _ in range(_UPDATE_TRIES):
            current = self.read(existing["metadata"]["name"])
            if current is None or not self.is_adoptable(current, item):
                # The object was deleted or has lost csi-fleet's labels, so a new plan handles the
                # item (C-098).
                self.store.drop(self.queue_name, {item.text: existing})
                self.runtime.queue.add([capacity_key(self.queue_name, PLAN)])
                return done("object is gone")
            body = updated_object(self.publisher, current, sizes)
            if body is None:
                self.keep(item, current)
                return done("unchanged")
            self.turn()
            with contextlib.suppress(ConflictError, NotFoundError):
                self.keep(item, self.runtime.effects.kube.update(self.publishing.resource, body))
                return done("updated")
        return retry("conflict")

    def is_adoptable(self, found: JsonObject, item: Item) -> bool:
        """Return True if the object belongs to the item and is not being deleted."""
        is_going = bool(found["metadata"].get("deletionTimestamp"))
        return self.publisher.can_adopt(found, item) and not is_going

    def read(self, name: str) -> JsonObject | None:
        """Read one object live; return None if it does not exist."""
        try:
            return self.runtime.kube.get(
                self.publishing.resource, name, namespace=self.publisher.namespace
            )
        except NotFoundError:
            return None

    def keep(self, item: Item, written: JsonObject) -> None:
        """Store the object returned by the API server as the item's known object (CAP-041)."""
        self.store.put(self.queue_name, {item.text: slim(written)})

    def turn(self) -> None:
        """Before a write, wait for the rate limit, then check the lease (G9)."""
        self.publishing.wait_for_turn(self.driver)
        self.lease.check()

    # Deleted objects.

    def delete(self, name: str) -> Outcome:
        """Delete an obsolete object, unless an item has adopted it in the meantime (CAP-042).

        The name and the uid come from Redis, so only an object with the driver's labels is deleted.
        """
        uid = self.store.obsolete_uid(self.queue_name, name)
        if uid is None:
            return done("not obsolete any more")
        found = self.read(name) if self.store.item_of(self.queue_name, uid) is None else None
        if found and found["metadata"]["uid"] == uid and self.publisher.manages(found):
            self.turn()
            with contextlib.suppress(NotFoundError, ConflictError):
                self.runtime.effects.kube.delete(
                    self.publishing.resource, name, namespace=self.publisher.namespace, uid=uid
                )
        self.store.deleted(self.queue_name, name)
        return done("deleted")

    def gone(self, uid: str) -> Outcome:
        """Queue the item whose object was deleted or lost csi-fleet's labels (CAP-030, C-098)."""
        text = self.store.item_of(self.queue_name, uid)
        if text is None:
            return done("was ours to delete")
        self.store.drop(self.queue_name, {text: {"metadata": {"uid": uid}}})
        self.runtime.queue.add([capacity_key(self.queue_name, text)])
        return done("is made again")


def slim(one: Mapping[str, Any]) -> JsonObject:
    """Return the object without managedFields, so that a PUT leaves them unchanged."""
    metadata = {name: value for name, value in one["metadata"].items() if name != "managedFields"}
    return {**one, "metadata": metadata}
