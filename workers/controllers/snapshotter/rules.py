"""Turns events into the keys of snapshot contents that need a reconcile (SNS-001 to SNS-003).

The watcher remembers, for each snapshot content that may need a reconcile, the fields that only
other programs change. The snapshotter's own writes (annotation being-created, status, finalizer
removal) do not change these fields, so they add no key. No key is needed, because the reconcile
that made the writes has scheduled its own next run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workers.constants import (
    ANN_BEING_CREATED,
    ANN_BEING_DELETED,
    ANN_GROUP_BEING_CREATED,
    ANN_GROUP_BEING_DELETED,
    ANN_GROUP_HANDLE,
    FINALIZER_CONTENT,
    FINALIZER_GROUP_CONTENT,
    LABEL_SNAPSHOT_NODE,
)
from workers.engine.waits import Waits
from workers.kube import paths
from workers.queue.keys import Key
from workers.spec import Forget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from workers.kube.objects import GroupSnapshotContent, Meta, SnapshotContent
    from workers.kube.paths import Resource
    from workers.spec import Told

KIND_CONTENTS: Final = "contents"
KIND_GROUP_CONTENTS: Final = "group-contents"


@dataclass(frozen=True, slots=True)
class View:
    """The facts that determine whether a snapshot content of either kind needs a reconcile.

    Attributes:
        driver: the name of the content's CSI driver.
        class_name: the name of the content's class; "" without a class.
        is_ready: whether the content is ready, according to its status.
        has_error: whether the status contains an error.
        is_unbound: whether the content is pre-provisioned and no snapshot is bound to it.
        is_cut: whether the snapshot is created by a call for this content alone. Such a call may be
            in flight, and an intent may exist, even if the object does not show it.
        being_created, being_deleted: whether the content has the annotation of that name.
        foreign: the fields that only other programs change; a change means that a reconcile is
            needed.
    """

    driver: str
    class_name: str
    is_ready: bool
    has_error: bool
    is_unbound: bool
    is_cut: bool
    being_created: bool
    being_deleted: bool
    is_deleting: bool
    foreign: tuple[Any, ...]

    @property
    def is_undecided(self) -> bool:
        """Return True if a reconcile may be needed (SNS-010, SNS-011)."""
        if self.is_deleting:
            is_wanted = self.being_deleted or self.being_created or self.is_unbound
            return is_wanted or not self.is_ready
        return not self.is_ready or self.being_created


def _foreign(meta: Meta, created: str, finalizer: str, class_name: str) -> tuple[Any, ...]:
    annotations = {k: v for k, v in (meta.annotations or {}).items() if k != created}
    return (
        meta.uid,
        meta.deletion_timestamp,
        class_name,
        tuple(sorted(annotations.items())),
        (meta.labels or {}).get(LABEL_SNAPSHOT_NODE),
        meta.has_finalizer(finalizer),
    )


def view_of_content(item: SnapshotContent) -> View:
    """Return the view of a VolumeSnapshotContent."""
    meta, spec, status = item.metadata, item.spec, item.status
    class_name = spec.volume_snapshot_class_name or ""
    is_dynamic = spec.source.volume_handle is not None
    return View(
        driver=spec.driver,
        class_name=class_name,
        is_ready=bool(status and status.ready_to_use),
        has_error=bool(status and status.error),
        is_unbound=spec.source.snapshot_handle is not None and not spec.volume_snapshot_ref.uid,
        is_cut=is_dynamic and meta.annotation(ANN_GROUP_HANDLE) is None,
        being_created=meta.annotation(ANN_BEING_CREATED) is not None,
        being_deleted=meta.annotation(ANN_BEING_DELETED) is not None,
        is_deleting=meta.deletion_timestamp is not None,
        foreign=_foreign(meta, ANN_BEING_CREATED, FINALIZER_CONTENT, class_name),
    )


def view_of_group_content(item: GroupSnapshotContent) -> View:
    """Return the view of a VolumeGroupSnapshotContent."""
    meta, spec, status = item.metadata, item.spec, item.status
    class_name = spec.volume_group_snapshot_class_name or ""
    has_handles = spec.source.group_snapshot_handles is not None
    return View(
        driver=spec.driver,
        class_name=class_name,
        is_ready=bool(status and status.ready_to_use),
        has_error=bool(status and status.error),
        is_unbound=has_handles and not spec.volume_group_snapshot_ref.uid,
        is_cut=not has_handles,
        being_created=meta.annotation(ANN_GROUP_BEING_CREATED) is not None,
        being_deleted=meta.annotation(ANN_GROUP_BEING_DELETED) is not None,
        is_deleting=meta.deletion_timestamp is not None,
        foreign=_foreign(meta, ANN_GROUP_BEING_CREATED, FINALIZER_GROUP_CONTENT, class_name),
    )


@dataclass(slots=True)
class _Open:
    """A snapshot content that may need a reconcile."""

    key: Key
    foreign: tuple[Any, ...]
    has_error: bool


class _Contents:
    """The snapshot contents of one kind that may need a reconcile."""

    def __init__(self, kind: str, view: Callable[[Any], View]) -> None:
        self.kind, self.view = kind, view
        self.open: Waits[_Open] = Waits()

    def seen(self, item: Any, queue: Callable[[Meta, str], str | None]) -> Iterable[Told]:
        name, view = item.metadata.name, self.view(item)
        self.open.listed(name)
        driver = queue(item.metadata, view.driver)
        if driver is None or not view.is_undecided:
            self.open.pop(name)
            return ()
        known = self.open.get(name)
        key = Key(self.kind, driver, name)
        now = _Open(key, view.foreign, view.has_error)
        self.open.put(name, now, ("class", view.class_name))
        is_new = known is None or known.foreign != view.foreign or known.key != key
        return (key,) if is_new else ()

    def gone(self, item: Any, queue: Callable[[Meta, str], str | None]) -> Iterable[Told]:
        name, view = item.metadata.name, self.view(item)
        self.open.pop(name)
        driver = queue(item.metadata, view.driver)
        if driver is None:
            return ()
        key = Key(self.kind, driver, name)
        # The object may have been removed during a call, and the snapshot which that call created
        # must not be left behind. It may also have left state, such as a copy that could not be
        # removed. A reconcile cleans up both.
        return (key,) if view.being_created or view.is_cut else (Forget(key),)

    def of_class(self, name: str) -> Iterable[Told]:
        """Return the keys of failed snapshot contents whose class is new or changed (SND-029)."""
        return [one.key for one in self.open.waiting_for("class", name) if one.has_error]


class SnapshotterRules:
    """Tracks, for all registered drivers, the snapshot contents that may need a reconcile."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[str | None, str]] = {}
        self._contents = {
            paths.SNAPSHOT_CONTENTS: _Contents(KIND_CONTENTS, view_of_content),
            paths.GROUP_SNAPSHOT_CONTENTS: _Contents(KIND_GROUP_CONTENTS, view_of_group_content),
        }
        self._classes = {
            paths.SNAPSHOT_CLASSES: self._contents[paths.SNAPSHOT_CONTENTS],
            paths.GROUP_SNAPSHOT_CLASSES: self._contents[paths.GROUP_SNAPSHOT_CONTENTS],
        }

    def set_drivers(self, drivers: Sequence[Mapping[str, Any]]) -> Iterable[Told]:
        """Replace the drivers; the LIST request that follows returns their snapshot contents."""
        queues: dict[str, dict[str | None, str]] = {}
        for record in drivers:
            queues.setdefault(record["name"], {})[record.get("node")] = record["queue_name"]
        self._queues = queues
        return ()

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> Iterable[Told]:
        """Process a snapshot content or a class that was added, changed or listed."""
        del is_listed
        if resource in self._classes:
            return self._classes[resource].of_class(item.metadata.name)
        return self._contents[resource].seen(item, self._queue)

    def gone(self, resource: Resource, item: Any) -> Iterable[Told]:
        """Process the deletion of an object."""
        if resource in self._classes:
            return ()
        return self._contents[resource].gone(item, self._queue)

    def begin_list(self, resource: Resource) -> None:
        """Start recording which snapshot contents are in the list."""
        if resource in self._contents:
            self._contents[resource].open.begin_list()

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Return the keys of unlisted snapshot contents; their reconcile cleans up after them."""
        contents = self._contents.get(resource)
        return [one.key for one in contents.open.end_list()] if contents is not None else ()

    def all_keys(self) -> Iterable[Key]:
        """Return the keys of all snapshot contents that may need a reconcile."""
        return [one.key for contents in self._contents.values() for one in contents.open.values()]

    def _queue(self, meta: Meta, driver: str) -> str | None:
        """Return the driver's queue; in node deployment, that of the content's node (SNS-001)."""
        nodes = self._queues.get(driver)
        if nodes is None:
            return None
        node = (meta.labels or {}).get(LABEL_SNAPSHOT_NODE)
        return nodes.get(node) or nodes.get(None)
