"""Turns events into the keys of snapshots and snapshot contents that need a reconcile.

The watcher remembers snapshots that are waiting for a snapshot content, a class or a claim. A
change to the awaited object adds the snapshot's key at once, whereas snapshot-controller waits for
its back-off (SND-029, SNQ-009). The controller's own writes add no key, because they change no
field that is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers.constants import (
    ANN_BEING_DELETED,
    ANN_DEFAULT_SNAPSHOT_CLASS,
    FINALIZER_CLAIM_AS_SOURCE,
    FINALIZER_CONTENT,
    FINALIZER_SNAPSHOT_AS_SOURCE,
    FINALIZER_SNAPSHOT_BOUND,
    FINALIZER_SNAPSHOT_IN_GROUP,
    FINALIZER_SNAPSHOT_SOURCE,
)
from workers.controllers.snapshot_controller.grouprules import GroupRules
from workers.controllers.snapshot_controller.keys import binding_key, snapshot_key, source_key
from workers.kube import paths
from workers.spec import Forget

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from workers.kube.objects import AnyObject, Claim, Meta, Snapshot, SnapshotContent
    from workers.kube.paths import Resource
    from workers.queue.keys import Key
    from workers.spec import Told

_OURS = (FINALIZER_SNAPSHOT_AS_SOURCE, FINALIZER_SNAPSHOT_BOUND, FINALIZER_SNAPSHOT_IN_GROUP)
_KIND_SNAPSHOT = "VolumeSnapshot"
_KIND_GROUP = "VolumeGroupSnapshot"


@dataclass(slots=True)
class _Open:
    """A snapshot that is waiting for another object.

    Attributes:
        foreign: the fields that only other programs change.
        is_ready: whether the snapshot is only waiting for a change of its content's policy.
        is_deleting: whether the snapshot is waiting for its content, its group or a restore.
        claim: the namespace and name of the source claim.
        class_name: the name of the snapshot's class; None while it has none.
        names: the content's name in the spec; "" for a dynamic snapshot.
        is_bound: whether the status names a snapshot content.
        has_error: whether the status holds an error.
    """

    foreign: tuple[Any, ...]
    is_ready: bool
    is_deleting: bool
    claim: str
    class_name: str | None
    names: str
    is_bound: bool
    has_error: bool


def _open_of(item: Snapshot) -> _Open | None:
    """Return the entry of a snapshot that is waiting for another object; None if it is settled."""
    meta, spec, status = item.metadata, item.spec, item.status
    is_deleting = meta.deletion_timestamp is not None
    is_ready = bool(status and status.ready_to_use)
    bound = (status and status.bound_volume_snapshot_content_name) or ""
    is_settled = is_ready and bool(bound) and meta.has_finalizer(FINALIZER_SNAPSHOT_AS_SOURCE)
    if is_deleting:
        if not any(meta.has_finalizer(name) for name in _OURS):
            return None
    elif is_settled and meta.has_finalizer(FINALIZER_SNAPSHOT_BOUND) and not _lacks_owner(item):
        return None
    return _Open(
        foreign=(
            meta.uid,
            meta.deletion_timestamp,
            is_deleting and meta.has_finalizer(FINALIZER_SNAPSHOT_SOURCE),
            spec.volume_snapshot_class_name if bound else None,
            spec.source.persistent_volume_claim_name,
            spec.source.volume_snapshot_content_name,
        ),
        is_ready=is_settled,
        is_deleting=is_deleting,
        claim=_source_of(item),
        class_name=spec.volume_snapshot_class_name,
        names=spec.source.volume_snapshot_content_name or "",
        is_bound=bool(bound),
        has_error=bool(status and status.error),
    )


def _lacks_owner(item: Snapshot) -> bool:
    """Return True if the snapshot is a member of a group that does not own it yet (SNC-055)."""
    status, owners = item.status, item.metadata.owner_references or ()
    in_group = status is not None and bool(status.volume_group_snapshot_name)
    return in_group and not any(owner.kind == _KIND_GROUP for owner in owners)


class SnapshotControllerRules:
    """Tracks the cluster's waiting snapshots, whatever their driver."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        # Maps the full name of a source claim to the names of its open snapshots.
        self._of_claim: dict[str, set[str]] = {}
        # `_contents` holds the open snapshots' contents as last seen. `_bindings` holds the names
        # of the snapshot contents that need a reconcile of their own.
        self._contents: dict[str, tuple[Any, ...]] = {}
        self._bindings: set[str] = set()
        # The claims that have csi-fleet's finalizer; the value is True if the claim is being
        # deleted.
        self._held: dict[str, bool] = {}
        self._groups = GroupRules()
        self._listed: dict[Resource, set[str]] = {}
        # Maps every snapshot content to its snapshot, even if the snapshot is settled, because a
        # list of contents does not show which snapshot has lost its content. An entry takes about
        # 240 bytes.
        self._bound: dict[str, str] = {}
        # Settled snapshots and their contents, until both kinds have been listed once.
        self._settled: dict[str, str] | None = {}
        self._first: set[Resource] = {paths.SNAPSHOTS, paths.SNAPSHOT_CONTENTS}

    def set_drivers(self, drivers: Sequence[Mapping[str, Any]]) -> Iterable[Told]:
        """Do nothing, because this controller needs no driver."""
        del drivers
        return ()

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> Iterable[Told]:
        """Process an object that was added, changed or listed."""
        del is_listed
        if resource in self._listed:
            self._listed[resource].add(item.metadata.full_name)
        if resource == paths.SNAPSHOTS:
            return self._snapshot(item)
        if resource == paths.SNAPSHOT_CONTENTS:
            return self._content(item)
        if resource == paths.SNAPSHOT_CLASSES:
            return self._class(item)
        if resource == paths.CLAIMS:
            return self._claim(item)
        return self._groups.seen(resource, item)

    def gone(self, resource: Resource, item: Any) -> Iterable[Told]:
        """Process a deletion; return the keys of the objects that were waiting for it."""
        meta = item.metadata
        if resource == paths.SNAPSHOTS:
            self._remember(meta.full_name, None)
            freed = self._freed([_source_of(item)])
            return (Forget(snapshot_key(meta.namespace, meta.name)), *freed)
        if resource == paths.SNAPSHOT_CONTENTS:
            self._contents.pop(meta.name, None)
            self._bindings.discard(meta.name)
            self._bound.pop(meta.name, None)
            ref = item.spec.volume_snapshot_ref
            woken = [snapshot_key(ref.namespace, ref.name)] if ref.name else []
            return (*woken, Forget(binding_key(meta.name)))
        if resource == paths.CLAIMS:
            was_held = self._held.pop(meta.full_name, None) is not None
            ended = [Forget(source_key(meta.full_name))] if was_held else []
            return (*self._restored(item), *ended)
        if resource == paths.GROUP_SNAPSHOTS:
            return [*self._groups.gone(resource, item), *self._members(meta.namespace)]
        return self._groups.gone(resource, item)

    def begin_list(self, resource: Resource) -> None:
        """Start recording which objects are in the list."""
        self._listed[resource] = set()
        self._groups.begin_list(resource)

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Treat objects that were not in the list as deleted."""
        listed = self._listed.pop(resource, set())
        woken: list[Told] = list(self._groups.end_list(resource))
        if resource == paths.SNAPSHOTS:
            for name in self._open.keys() - listed:
                self._remember(name, None)
            woken += self._freed(self._held)
        if resource == paths.CLAIMS:
            self._held = {n: v for n, v in self._held.items() if n in listed}
        if resource == paths.SNAPSHOT_CONTENTS:
            self._bindings &= listed
            self._contents = {n: v for n, v in self._contents.items() if n in listed}
            woken += [_key(name) for name, one in self._open.items() if one.is_deleting]
            lost = sorted(self._bound.keys() - listed)
            woken += [_bound_key(self._bound.pop(content)) for content in lost]
        self._first.discard(resource)
        return [*woken, *(self._misbound() if not self._first else ())]

    def all_keys(self) -> Iterable[Key]:
        """Return all waiting keys, except those of ready snapshots that are not being deleted."""
        waiting = [n for n, one in self._open.items() if one.is_deleting or not one.is_ready]
        return [
            *map(_key, waiting),
            *(binding_key(name) for name in self._bindings),
            *self._freed(self._held),
            *self._groups.all_keys(),
        ]

    # One method per kind of object.

    def _snapshot(self, item: Snapshot) -> Iterable[Told]:
        name, one = item.metadata.full_name, _open_of(item)
        known = self._remember(name, one)
        woken: list[Told] = []
        source = _source_of(item)
        if self._held.get(source) and (one is None or one.is_ready):
            woken += self._freed([source])
        if one is None:
            bound = item.status and item.status.bound_volume_snapshot_content_name
            if self._settled is not None and bound:
                self._settled[_with_uid(name, item.metadata.uid)] = bound
        elif known is None or known.foreign != one.foreign or (known.is_ready and not one.is_ready):
            woken.append(_key(name))
        return woken

    def _content(self, item: SnapshotContent) -> Iterable[Told]:
        meta, spec = item.metadata, item.spec
        woken: list[Told] = []
        if _needs_binding_pass(item):
            if meta.name not in self._bindings or meta.deletion_timestamp is None:
                woken.append(binding_key(meta.name))
            self._bindings.add(meta.name)
        else:
            self._bindings.discard(meta.name)
        ref = spec.volume_snapshot_ref
        name = f"{ref.namespace}/{ref.name}"
        if ref.name:
            bound = _with_uid(name, ref.uid)
            former = self._bound.get(meta.name, bound)
            self._bound[meta.name] = bound
            if former != bound and not former.endswith("/"):  # a trailing "/": we are binding it
                woken.append(_bound_key(former))
        waiting = self._open.get(name)
        if waiting is None:
            self._contents.pop(meta.name, None)
            return woken
        now = _compared(item)
        before = self._contents.get(meta.name)
        self._contents[meta.name] = now
        has_news = item.status is not None or (waiting.names == meta.name and not ref.uid)
        if before != now and (before is not None or has_news):
            woken.append(_key(name))
        return woken

    def _class(self, item: AnyObject) -> Iterable[Told]:
        is_default = item.metadata.annotation(ANN_DEFAULT_SNAPSHOT_CLASS) is not None
        return [
            _key(name)
            for name, one in self._open.items()
            if one.has_error
            and not one.is_bound
            and (one.class_name == item.metadata.name or (one.class_name is None and is_default))
        ]

    def _claim(self, item: Claim) -> Iterable[Told]:
        meta = item.metadata
        woken: list[Told] = [*self._hold(meta)]
        if item.status.phase == "Bound":
            woken += [
                _key(name)
                for name in sorted(self._of_claim.get(meta.full_name, ()))
                if (one := self._open[name]).has_error and not one.is_bound
            ]
        return woken if item.status.phase in {"", "Pending"} else [*woken, *self._restored(item)]

    def _hold(self, meta: Meta) -> Iterable[Key]:
        """Return the key of a claim that is being deleted and that no snapshot needs (SNQ-013).

        A claim that is not being deleted is checked when a snapshot of it is deleted, and on every
        resync.
        """
        name = meta.full_name
        if not meta.has_finalizer(FINALIZER_CLAIM_AS_SOURCE):
            self._held.pop(name, None)
            return ()
        self._held[name] = meta.deletion_timestamp is not None
        return self._freed([name] if self._held[name] else [])

    def _freed(self, claims: Iterable[str]) -> list[Key]:
        """Return the keys of claims that have csi-fleet's finalizer but that no snapshot needs."""
        return [
            source_key(claim)
            for claim in sorted(self._held.keys() & claims)
            if all(self._open[name].is_ready for name in self._of_claim.get(claim, ()))
        ]

    def _remember(self, name: str, one: _Open | None) -> _Open | None:
        """Replace the entry of a snapshot; return its previous entry."""
        known = self._open.pop(name, None)
        if known is not None:
            names = self._of_claim[known.claim]
            names.discard(name)
            if not names:
                del self._of_claim[known.claim]
        if one is not None:
            self._open[name] = one
            self._of_claim.setdefault(one.claim, set()).add(name)
        return known

    def _restored(self, item: Claim) -> Iterable[Told]:
        """Return the key of a snapshot whose deletion is waiting for this claim's restore."""
        source = item.spec.data_source_ref or item.spec.data_source
        if source is None or source.kind != _KIND_SNAPSHOT:
            return ()
        name = f"{source.namespace or item.metadata.namespace}/{source.name}"
        waiting = self._open.get(name)
        return (_key(name),) if waiting is not None and waiting.is_deleting else ()

    def _members(self, namespace: str) -> Iterable[Told]:
        """Return the keys of snapshots that may be waiting for their group (SNC-058 row 3)."""
        return [
            _key(name)
            for name, one in self._open.items()
            if one.is_deleting and name.partition("/")[0] == namespace
        ]

    def _misbound(self) -> Iterable[Told]:
        """Return the keys of ready snapshots without content in the first lists (SNC-055)."""
        settled, self._settled = self._settled or {}, None
        return [
            _bound_key(name)
            for name, content in settled.items()
            if self._bound.get(content) != name
        ]


def _needs_binding_pass(item: SnapshotContent) -> bool:
    """Return True if the content is invalid or misses its finalizer or annotation (SNC-073)."""
    meta, spec = item.metadata, item.spec
    if (spec.source.volume_handle is None) == (spec.source.snapshot_handle is None):
        return True
    if not spec.volume_snapshot_ref.uid:
        return False
    if meta.deletion_timestamp is None:
        return not meta.has_finalizer(FINALIZER_CONTENT)
    return meta.annotation(ANN_BEING_DELETED) is None


def _compared(item: SnapshotContent) -> tuple[Any, ...]:
    """Return the fields of a snapshot content that its snapshot depends on."""
    status, spec = item.status, item.spec
    error = status.error if status else None
    return (
        item.metadata.uid,
        item.metadata.deletion_timestamp,
        spec.deletion_policy,
        status
        and (
            status.snapshot_handle,
            status.ready_to_use,
            status.creation_time,
            status.restore_size,
            error and (error.message, error.time),
        ),
    )


def _source_of(item: Snapshot) -> str:
    return f"{item.metadata.namespace}/{item.spec.source.persistent_volume_claim_name}"


def _key(name: str) -> Key:
    namespace, _, rest = name.partition("/")
    return snapshot_key(namespace, rest)


def _with_uid(name: str, uid: str) -> str:
    return f"{name}/{uid}"


def _bound_key(name_with_uid: str) -> Key:
    return _key(name_with_uid.rpartition("/")[0])
