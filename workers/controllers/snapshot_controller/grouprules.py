"""Turns events on group snapshots and their contents into keys; part of this controller's rules.

There are only a few group snapshots. The watcher remembers each group snapshot that is not ready or
is being deleted, with the fields that only other programs change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.constants import (
    FINALIZER_GROUP_BOUND,
    FINALIZER_GROUP_CONTENT,
)
from workers.controllers.snapshot_controller.keys import group_binding_key, group_key
from workers.kube import paths
from workers.spec import Forget

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.kube.objects import GroupSnapshot, GroupSnapshotContent
    from workers.kube.paths import Resource
    from workers.queue.keys import Key
    from workers.spec import Told


class GroupRules:
    """Tracks group snapshots and their group snapshot contents."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], tuple[Any, ...]] = {}
        self._contents: dict[str, tuple[Any, ...]] = {}
        self._bindings: set[str] = set()  # contents that need a reconcile
        # Maps every group snapshot content to its group, because a list of contents does not show
        # which group has lost its content.
        self._bound: dict[str, tuple[str, str]] = {}
        self._listed: dict[Resource, set[Any]] = {}

    def seen(self, resource: Resource, item: Any) -> Iterable[Told]:
        """Process a group snapshot, its content or a class that was added, changed or listed."""
        if resource == paths.GROUP_SNAPSHOTS:
            return self._group(item)
        if resource == paths.GROUP_SNAPSHOT_CONTENTS:
            return self._content(item)
        if resource == paths.GROUP_SNAPSHOT_CLASSES:
            return [group_key(*name) for name in self._open]
        return ()

    def gone(self, resource: Resource, item: Any) -> Iterable[Told]:
        """Process a deletion; return the key of the group snapshot whose content was deleted."""
        meta = item.metadata
        if resource == paths.GROUP_SNAPSHOTS:
            self._open.pop((meta.namespace, meta.name), None)
            return (Forget(group_key(meta.namespace, meta.name)),)
        if resource == paths.GROUP_SNAPSHOT_CONTENTS:
            self._contents.pop(meta.name, None)
            self._bindings.discard(meta.name)
            self._bound.pop(meta.name, None)
            ref = item.spec.volume_group_snapshot_ref
            return (group_key(ref.namespace, ref.name), Forget(group_binding_key(meta.name)))
        return ()

    def begin_list(self, resource: Resource) -> None:
        """Start recording which objects are in the list."""
        if resource in {paths.GROUP_SNAPSHOTS, paths.GROUP_SNAPSHOT_CONTENTS}:
            self._listed[resource] = set()

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Treat objects that were not in the list as deleted."""
        listed = self._listed.pop(resource, None)
        if listed is None:
            return ()
        if resource == paths.GROUP_SNAPSHOTS:
            self._open = {name: v for name, v in self._open.items() if name in listed}
            return ()
        self._contents = {name: v for name, v in self._contents.items() if name in listed}
        self._bindings &= listed
        lost = {self._bound.pop(content) for content in self._bound.keys() - listed}
        return [group_key(*name) for name in sorted(self._open.keys() | lost)]

    def all_keys(self) -> Iterable[Key]:
        """Return the keys of all group snapshots and snapshot contents that need a reconcile."""
        return [
            *(group_key(*name) for name in self._open),
            *map(group_binding_key, self._bindings),
        ]

    def _group(self, item: GroupSnapshot) -> Iterable[Told]:
        meta, status = item.metadata, item.status
        name = (meta.namespace, meta.name)
        if paths.GROUP_SNAPSHOTS in self._listed:
            self._listed[paths.GROUP_SNAPSHOTS].add(name)
        is_deleting = meta.deletion_timestamp is not None
        is_bound = bool(status and status.bound_volume_group_snapshot_content_name)
        is_ready = bool(status and status.ready_to_use) and is_bound
        is_held = meta.has_finalizer(FINALIZER_GROUP_BOUND)
        if (is_deleting and not is_held) or (not is_deleting and is_ready and is_held):
            self._open.pop(name, None)
            return ()
        foreign = (meta.uid, meta.deletion_timestamp, is_ready)
        is_new = self._open.get(name) != foreign
        self._open[name] = foreign
        return (group_key(*name),) if is_new else ()

    def _content(self, item: GroupSnapshotContent) -> Iterable[Told]:
        meta, spec, status = item.metadata, item.spec, item.status
        if paths.GROUP_SNAPSHOT_CONTENTS in self._listed:
            self._listed[paths.GROUP_SNAPSHOT_CONTENTS].add(meta.name)
        ref = spec.volume_group_snapshot_ref
        if ref.name:
            self._bound[meta.name] = (ref.namespace, ref.name)
        woken: list[Told] = []
        has_one_source = bool(spec.source.volume_handles) != (
            spec.source.group_snapshot_handles is not None
        )
        lacks_finalizer = not meta.has_finalizer(FINALIZER_GROUP_CONTENT)
        if not has_one_source or (ref.uid and meta.deletion_timestamp is None and lacks_finalizer):
            self._bindings.add(meta.name)
            woken.append(group_binding_key(meta.name))
        else:
            self._bindings.discard(meta.name)
        error = status.error if status else None
        now = (
            meta.uid,
            meta.deletion_timestamp,
            ref.uid,
            status
            and (
                status.volume_group_snapshot_handle,
                status.ready_to_use,
                status.creation_time,
                error and (error.message, error.time),
            ),
        )
        before = self._contents.get(meta.name)
        if (ref.namespace, ref.name) not in self._open:
            self._contents.pop(meta.name, None)
            return woken
        self._contents[meta.name] = now
        if before != now:
            woken.append(group_key(ref.namespace, ref.name))
        return woken
