"""Shares classes, nodes and attachments through Redis, so that no worker has to watch them.

The watcher writes each object with its resourceVersion. A newer version always wins, so two
watchers can write at the same time. Every change gets a number; each reader process keeps a copy
and fetches only the changes. Until the watcher has declared a kind complete in the current epoch, a
missing object proves nothing (M-017), and reading it raises CatalogIncomplete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from workers.errors import CatalogIncomplete
from workers.queue.catalogkinds import (
    KIND_ATTACHMENTS,
    KIND_CLASSES,
    KIND_CSINODES,
    KIND_NODES,
)
from workers.queue.leases import TTL_SECONDS
from workers.queue.names import redis_key
from workers.queue.records import encode, peek, quarantine
from workers.queue.scripts import Scripts, reading, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import redis

    from workers.queue.leases import CatalogState

CACHED_KINDS: Final = (KIND_CLASSES, KIND_CSINODES, KIND_NODES)
KINDS: Final = (*CACHED_KINDS, KIND_ATTACHMENTS)

# The number of objects per script call; together, they are a few hundred KiB in size.
_BATCH = 200


class CatalogWriter:
    """The watcher's side of the catalog.

    Every method may be called again after a failure, and raises QueueUnavailable if Redis does not
    answer.
    """

    def __init__(self, client: redis.Redis, *, now_ms: Callable[[], int] | None = None) -> None:
        self._client = client
        self._complete = redis_key(client, "complete")
        self._doubts = redis_key(client, "doubts")
        self._entries = redis_key(client, "catalog")
        self._scripts = Scripts(client, now_ms)
        self._epoch = ""

    def epoch(self) -> str:
        """Return the current epoch.

        If the epoch has changed, the caller must list and replace all kinds again, and add all keys
        again. Read the epoch before the LIST request and pass it to `mark_complete` afterwards.
        """
        candidate, ttl_ms = self._scripts.new_life(), round(TTL_SECONDS * 1000)
        self._epoch = text(self._scripts.run("epoch", candidate, self._epoch, ttl_ms))
        return self._epoch

    def write(self, kind: str, entries: Iterable[tuple[str, str, Mapping[str, Any] | None]]) -> int:
        """Write entries of the form (name, resourceVersion, value).

        The value None means that the object was deleted at that version. An older version never
        replaces a newer version. Returns the number of entries that changed.
        """
        remaining = iter(entries)
        changed = 0
        while batch := list(islice(remaining, _BATCH)):
            changed += self._put(
                kind,
                [
                    (name, version, b"" if value is None else encode(value))
                    for name, version, value in batch
                ],
            )
        return changed

    def replace(
        self,
        kind: str,
        items: Iterable[tuple[str, str, Mapping[str, Any]]],
        list_resource_version: str,
    ) -> str:
        """Write a complete list (name, resourceVersion, value) and remove all other objects.

        An object that is newer than the list is kept, because another watcher wrote it. Tombstones
        older than the list are dropped. Newer tombstones are kept, because this watch will still
        deliver older events.

        Returns:
            The newest version among the entries that are newer than the list; "" if there are none.
            Another watcher wrote these entries, or they belong to a history that etcd no longer has
            (`end_history`).
        """
        listed: set[str] = set()

        def noted() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
            for item in items:
                listed.add(item[0])
                yield item

        self.write(kind, noted())
        gone: list[str] = []
        tombstones: list[str] = []
        newest = 0
        for name, version, is_tombstone in self._stored(kind):
            newest = max(newest, version)
            if name not in listed:
                (tombstones if is_tombstone else gone).append(name)
        self.write(kind, ((name, list_resource_version, None) for name in gone))
        self._drop(kind, tombstones, list_resource_version)
        return str(newest) if newest > number(list_resource_version) else ""

    def prune(self, kind: str, resource_version: str) -> None:
        """Drop the tombstones that are not newer than this version.

        A tombstone rejects its object's older events, which a slow watcher may still deliver. No
        watcher is an hour behind, so the caller passes the version from an hour ago.
        """
        gone = [name for name, _, is_tombstone in self._stored(kind) if is_tombstone]
        self._drop(kind, gone, resource_version)

    def mark_complete(self, kinds: Iterable[str], epoch: str) -> bool:
        """Declare that all objects of these kinds are written; return False if `epoch` is over."""
        return bool(self._scripts.run("catalog_complete", epoch, *kinds))

    def keep_fresh(self, kinds: Iterable[str], epoch: str) -> None:
        """Declare that a watch over these kinds is open and that all its events are written.

        Kinds that are not complete in this epoch are skipped. Call this every few seconds: readers
        do not trust the attachments unless a watcher is following them.
        """
        self._scripts.run("catalog_fresh", epoch, *kinds)

    def end_history(self, epoch: str) -> bool:
        """Drop all entries that have a resourceVersion, and end this epoch.

        Used if a cluster's etcd has been restored from a backup: the stored versions are higher
        than the cluster's current ones and would take precedence for hours.

        Returns:
            False if that epoch had already ended.
        """
        return bool(self._scripts.run("end_history", epoch, *KINDS))

    def mark_incomplete(self, kinds: Iterable[str]) -> None:
        """Declare that changes to these kinds were lost; readers must wait for the next list."""
        if wanted := list(kinds):
            with reading(self._client):
                self._client.hdel(self._complete, *wanted)

    def incomplete(self, kinds: Iterable[str], epoch: str) -> set[str]:
        """Return the kinds that must be listed and replaced; call this every few seconds.

        The result is not empty after Redis has lost its data, or after a reader found an unreadable
        entry.
        """
        wanted = list(kinds)
        with reading(self._client):
            for kind in map(text, self._client.hkeys(self._doubts)):
                self._set_aside(kind)
            marks = self._client.hmget(self._complete, wanted)
        return {kind for kind, mark in zip(wanted, marks, strict=True) if text(mark) != epoch}

    def _set_aside(self, kind: str) -> None:
        """Quarantine a kind's unreadable entries; their objects are recovered by a new list."""
        self.mark_incomplete([kind])
        key = self._entries + kind
        for name, entry in self._client.hscan_iter(key, count=500):
            if is_broken(entry):
                quarantine(self._client, key, text(name), entry)
        self._client.hdel(self._doubts, kind)

    def _put(self, kind: str, entries: list[tuple[str, str, bytes]]) -> int:
        flat = [part for entry in entries for part in entry]
        return int(self._scripts.run("catalog_put", kind, *flat))

    def _drop(self, kind: str, tombstones: list[str], version: str) -> None:
        for start in range(0, len(tombstones), _BATCH):
            names = tombstones[start : start + _BATCH]
            self._scripts.run("catalog_prune", kind, version, *names)

    def _stored(self, kind: str) -> Iterator[tuple[str, int, bool]]:
        """Yield every entry of a kind as (name, version, whether it is a tombstone)."""
        with reading(self._client):
            for raw_name, entry in self._client.hscan_iter(self._entries + kind, count=500):
                version, _, value = entry.partition(b" ")
                yield text(raw_name), number(text(version)), not value


@dataclass(frozen=True, slots=True)
class _Copy:
    """This process's copy of one kind; it is replaced as a whole, so readers need no lock."""

    epoch: str = ""
    version: int = 0
    is_complete: bool = False
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)

    def is_current(self, kind: str, state: CatalogState | None) -> bool:
        if state is None or not self.is_complete or self.epoch != state.epoch:
            return False
        return kind in state.complete and self.version >= state.versions.get(kind, 0)


class CatalogReader:
    """The worker's side of the catalog: one copy per process; only changes are fetched.

    A reader is thread-safe. Pass the lease's `catalog` as `state`, so that Redis is queried only if
    the kind has changed since the copy was read. Without `state`, every call costs one small round
    trip. Never modify the returned objects: all callers share them.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._doubts = redis_key(client, "doubts")
        self._scripts = Scripts(client)
        self._copies: dict[str, _Copy] = {}

    def get(self, kind: str, name: str, state: CatalogState | None = None) -> dict[str, Any] | None:
        """Return one object; None if it does not exist.

        Raises:
            CatalogIncomplete: the kind is not complete, so a missing object proves nothing.
            QueueUnavailable: Redis does not answer.
        """
        return self.all(kind, state).get(name)

    def all(self, kind: str, state: CatalogState | None = None) -> dict[str, dict[str, Any]]:
        """Return every object of a kind, by name; raises the same errors as `get`."""
        copy = self._copies.get(kind, _Copy())
        if not copy.is_current(kind, state):
            self.refresh((kind,))
            copy = self._copies[kind]
        if not copy.is_complete:
            raise CatalogIncomplete(f"the watcher has not written all {kind} yet")
        return copy.objects

    def refresh(self, kinds: Iterable[str] = CACHED_KINDS) -> None:
        """Fetch the changes to several kinds, in one round trip if their copies share an epoch."""
        wanted = list(kinds)
        known = {kind: self._copies.get(kind, _Copy()) for kind in wanted}
        for epoch in {copy.epoch for copy in known.values()}:
            same = {kind: copy for kind, copy in known.items() if copy.epoch == epoch}
            asked = [part for kind, copy in same.items() for part in (kind, copy.version)]
            reply = self._scripts.run("catalog_read", epoch, *asked)
            for raw_kind, is_complete, version, is_full, flat in reply[1:]:
                kind = text(raw_kind)
                objects = (
                    {} if is_full else dict(same[kind].objects) if flat else same[kind].objects
                )
                self._apply(kind, objects, flat)
                fresh = _Copy(text(reply[0]), int(version), bool(is_complete), objects)
                self._copies[kind] = fresh

    def attachment(self, pv_name: str) -> dict[str, Any] | None:
        """Return the attachment record of one PV, read directly from Redis.

        Raises:
            CatalogIncomplete: the attachments are not complete, or no watcher has watched them in
                the last half minute. In that case, None would not prove that the volume is
                detached.
        """
        is_complete, entry = self._scripts.run("catalog_entry", KIND_ATTACHMENTS, pv_name)
        if not is_complete:
            raise CatalogIncomplete("no watcher has written all attachments, or follows them now")
        found: dict[str, dict[str, Any]] = {}
        self._apply(KIND_ATTACHMENTS, found, [pv_name.encode(), entry])
        return found.get(pv_name)

    def _apply(self, kind: str, objects: dict[str, dict[str, Any]], flat: list[bytes]) -> None:
        for raw_name, entry in zip(flat[::2], flat[1::2], strict=True):
            name = text(raw_name)
            value = value_of(entry)
            if value is not None:
                objects[name] = value
                continue
            objects.pop(name, None)
            if is_broken(entry):
                # Only the watcher may write the catalog. The watcher quarantines this entry and
                # lists the kind again.
                with reading(self._client):
                    self._client.hset(self._doubts, kind, name)
                raise CatalogIncomplete(f"the entry {name} of {kind} is unreadable")


def number(version: str) -> int:
    """Return a resourceVersion as a number; 0 for any other string."""
    return int(version) if version.isascii() and version.isdigit() and len(version) < 20 else 0


def value_of(entry: bytes) -> dict[str, Any] | None:
    """Return the object of a stored entry; None for a tombstone or an unreadable entry."""
    version, _, raw = entry.partition(b" ")
    return peek(raw) if version.isdigit() and raw else None


def is_broken(entry: bytes) -> bool:
    """Return True if the entry is neither an object nor a tombstone."""
    version, _, raw = entry.partition(b" ")
    return bool(entry) and (not version.isdigit() or (bool(raw) and peek(raw) is None))
