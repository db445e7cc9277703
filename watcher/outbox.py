"""Buffers what the reflectors write to Redis, so that they never wait for Redis.

Reflector threads put keys and cache entries here. One thread sends them, cache entries before keys,
so that a worker that is processing a claim finds the claim's class. A controller's keys are held
until this watcher has listed each cached kind that the controller reads: after a restart, the cache
in Redis is complete but outdated (client-go: WaitForCacheSync). While Redis is unavailable, the
buffer keeps the newest value per name, and later sends these values in order. If the buffer
overflows, it is dropped, and everything is listed and added again once Redis is available.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from workers.queue.keys import Key

# The number of keys per call to Redis.
_BATCH = 500
# The maximum number of keys and entries to keep while Redis is unavailable (some 100 MB). Above
# that, it is cheaper to list everything again.
MOST_WAITING: Final = 200_000
# How many keys become due per second when everything is added, at a resync or after Redis has lost
# its data. One worker can process many more, so the latency of new claims does not suffer.
SPREAD_PER_SECOND: Final = 200.0


class Queue(Protocol):
    """The methods of workers.queue.WorkQueue that are used here."""

    def add(self, keys: Iterable[Key], *, delay_seconds: float = 0.0) -> None:
        """Add the keys to the queue, so that they are reconciled."""

    def add_events(self, versions: Mapping[Key, str]) -> None:
        """Add the keys, except those added recently for the same version of their object."""

    def forget(self, keys: Iterable[Key]) -> None:
        """Drop the counters of deleted objects."""


class Catalog(Protocol):
    """The methods of workers.queue.catalog.CatalogWriter that are used here."""

    def write(self, kind: str, entries: Iterable[tuple[str, str, Mapping[str, Any] | None]]) -> int:
        """Write entries (name, version, value; None if deleted) unless Redis has newer ones."""

    def replace(
        self,
        kind: str,
        items: Iterable[tuple[str, str, Mapping[str, Any]]],
        list_resource_version: str,
    ) -> str:
        """Write a complete list.

        Return the highest version of the entries that are newer than the list; "" if there are
        none.
        """

    def mark_complete(self, kinds: Iterable[str], epoch: str) -> bool:
        """Declare that kinds are complete in an epoch; return False if the epoch has ended."""

    def keep_fresh(self, kinds: Iterable[str], epoch: str) -> None:
        """Record that these kinds' watches are open and all their events have been written."""


@dataclass(frozen=True, slots=True)
class CatalogList:
    """A complete list of one kind.

    Attributes:
        items: name -> (resourceVersion, value).
        version: the resourceVersion of the list.
        epoch: the epoch of Redis when the list began.
    """

    items: dict[str, tuple[str, Mapping[str, Any]]]
    version: str
    epoch: str


@dataclass(slots=True)
class _Pending:
    """The data that has not been sent yet.

    Attributes:
        entries: (kind, name) -> (version, value); if the value is None, the entry is removed.
        keys: key -> the object's resourceVersion; "" adds the key whatever the version, and None
            forgets it.
        everything: True if the keys of all objects that need work should be added; they are
            collected when they are sent.
        fresh: the cached kinds with an open watch, and the epoch of Redis.
        is_cut: True if the buffer overflowed and was dropped.
    """

    lists: dict[str, CatalogList] = field(default_factory=dict)
    entries: dict[tuple[str, str], tuple[str, Mapping[str, Any] | None]] = field(
        default_factory=dict
    )
    keys: dict[Key, str | None] = field(default_factory=dict)
    everything: bool = False
    fresh: tuple[Collection[str], str] = ((), "")
    is_cut: bool = False

    def __bool__(self) -> bool:
        waits = self.lists or self.entries or self.keys or self.fresh[0]
        return bool(waits or self.everything or self.is_cut)

    def cut(self, most: int) -> None:
        """On overflow, drop all keys, entries and lists.

        Lists cannot be kept on their own, because later entries would be missing.
        """
        if len(self.keys) + len(self.entries) > most:
            self.lists.clear()
            self.keys.clear()
            self.entries.clear()
            self.is_cut = True


class Outbox:
    """Sends to Redis when its one thread calls `step`; all other methods return at once.

    Args:
        queue: receives the keys.
        catalog: receives the entries of the shared cache.
        all_keys: returns the keys of all objects that need work.
        on_newer: called with the kind and the version if Redis has entries that are newer than the
            list just written, before the list is declared complete. If it raises an exception, the
            list is sent again later.
        on_cut: called after an overflow, once Redis is available and before anything is sent. It
            declares the cache incomplete and lists everything again; it raises an exception while
            Redis is unavailable.
        most_waiting: the maximum number of keys and entries to keep while Redis is unavailable.
    """

    def __init__(
        self,
        queue: Queue,
        catalog: Catalog,
        *,
        all_keys: Callable[[], list[Key]] = list,
        on_newer: Callable[[str, str], None] = lambda _kind, _version: None,
        on_cut: Callable[[], None] = lambda: None,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self._queue = queue
        self._catalog = catalog
        self._all_keys = all_keys
        self._on_newer = on_newer
        self._on_cut = on_cut
        self._most_waiting = most_waiting
        self._lock = threading.Lock()
        self._pending = _Pending()
        self._is_sending = False
        # For each cached kind that has not been listed yet: the kinds of keys that are waiting for
        # it.
        self._awaited: dict[str, set[str]] = {}
        self._held: dict[Key, str] = {}
        self._listed: set[str] = set()
        self._wake: Callable[[], None] = lambda: None

    def on_waiting(self, wake: Callable[[], None]) -> None:
        """Set the function that is called whenever something is waiting to be sent."""
        self._wake = wake

    def add(self, keys: Iterable[Key], *, version: str = "") -> None:
        """Add keys to the queue soon; a key that is already waiting here is not added twice.

        Args:
            keys: the keys to add.
            version: the resourceVersion of the event, if the keys are added only because of
                this event.
        """
        with self._lock:
            held = self._held_kinds()
            for key in keys:
                waiting = self._held if key.kind in held else self._pending.keys
                # An add without a version must cause a reconcile, so it replaces an add with a
                # version.
                waits = waiting.pop(key, None)
                waiting[key] = "" if waits == "" else version
            self._changed_keys()

    def hold(self, key_kinds: Iterable[str], kind: str) -> None:
        """Hold keys of these kinds until the cached kind `kind` has been listed once."""
        with self._lock:
            if kind not in self._listed:
                self._awaited.setdefault(kind, set()).update(key_kinds)

    def add_everything(self) -> None:
        """Add the keys of all objects that need work soon, in batches spread over time."""
        with self._lock:
            self._pending.everything = True
            self._wake()

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget keys soon; this replaces earlier requests to add them."""
        with self._lock:
            for key in keys:
                # The old entry is removed before the new one is added, so that the key moves to the
                # end and the keys are in the order of their last events.
                self._pending.keys.pop(key, None)
                self._held.pop(key, None)
                self._pending.keys[key] = None
            self._changed_keys()

    def put(self, kind: str, name: str, version: str, value: Mapping[str, Any] | None) -> None:
        """Write an entry of the shared cache soon; if `value` is None, remove the entry."""
        with self._lock:
            self._pending.entries[kind, name] = (version, value)
            self._pending.cut(self._most_waiting)
            self._wake()

    def replace(self, kind: str, listed: CatalogList) -> None:
        """Write a whole kind soon; drop its waiting entries, because they are older."""
        with self._lock:
            entries = self._pending.entries
            for identity in [identity for identity in entries if identity[0] == kind]:
                del entries[identity]
            self._pending.lists[kind] = listed
            self._listed.add(kind)
            if self._awaited.pop(kind, None) and self._held:
                held = self._held_kinds()
                for key in [key for key in self._held if key.kind not in held]:
                    self._pending.keys[key] = self._held.pop(key)
            self._wake()

    def keep_fresh(self, kinds: Collection[str], epoch: str) -> None:
        """Soon, after the entries waiting now, record that these kinds are being watched."""
        with self._lock:
            self._pending.fresh = (kinds, epoch)
            self._wake()

    @property
    def waiting(self) -> int:
        """The number of keys and entries that are waiting; complete lists are not counted."""
        with self._lock:
            return len(self._pending.keys) + len(self._held) + len(self._pending.entries)

    @property
    def is_idle(self) -> bool:
        """Whether everything has been sent except held keys."""
        with self._lock:
            return not self._pending and not self._is_sending

    def step(self) -> None:
        """Send everything that is waiting.

        Raises:
            TransientError: Redis is unavailable; unsent data waits for the next step.
        """
        with self._lock:
            batch, self._pending = self._pending, _Pending()
            self._is_sending = True
        try:
            self._send(batch)
        except BaseException:
            self._put_back(batch)
            raise
        finally:
            with self._lock:
                self._is_sending = False

    def _changed_keys(self) -> None:
        if self._pending.keys:
            self._pending.cut(self._most_waiting)
            self._wake()

    def _send(self, batch: _Pending) -> None:
        """Send the batch; remove the parts that have been sent from it.

        The keys to forget are sent first, because this frees memory, and a nearly full Redis
        refuses other writes.
        """
        if batch.is_cut:
            self._on_cut()
            batch.is_cut, batch.everything = False, True
        while gone := list(islice((key for key, one in batch.keys.items() if one is None), _BATCH)):
            self._queue.forget(gone)
            for key in gone:
                del batch.keys[key]
        while batch.lists:
            kind, listed = next(iter(batch.lists.items()))
            items = ((name, *entry) for name, entry in listed.items.items())
            if newer := self._catalog.replace(kind, items, listed.version):
                self._on_newer(kind, newer)
            # A result of False means that Redis has lost its data in the meantime; the keeper then
            # requests a new list.
            self._catalog.mark_complete([kind], listed.epoch)
            del batch.lists[kind]
        for kind in dict.fromkeys(kind for kind, _ in batch.entries):
            names = [name for one, name in batch.entries if one == kind]
            self._catalog.write(kind, [(name, *batch.entries[kind, name]) for name in names])
            for name in names:
                del batch.entries[kind, name]
        if batch.fresh[0]:
            self._catalog.keep_fresh(*batch.fresh)
            batch.fresh = ((), "")
        while batch.keys:
            self._send_keys(batch.keys)
        if batch.everything:
            # After a failure, this loop starts again from the beginning. That does no harm: adding
            # a key twice has no further effect.
            keys, size = self._free(self._all_keys()), max(1, int(SPREAD_PER_SECOND / 2))
            for start in range(0, len(keys), size):
                delay_seconds = start / SPREAD_PER_SECOND
                self._queue.add(keys[start : start + size], delay_seconds=delay_seconds)
            batch.everything = False

    def _held_kinds(self) -> set[str]:
        """Return the kinds of keys that are waiting for a list; the caller must hold the lock."""
        return set[str]().union(*self._awaited.values())

    def _free(self, keys: Iterable[Key]) -> list[Key]:
        """Return the keys that may be sent now, alternating between the queues; hold the others."""
        keys = list(keys)
        with self._lock:
            held = self._held_kinds()
            self._held.update((key, "") for key in keys if key.kind in held)
        return _interleaved(key for key in keys if key.kind not in held)

    def _send_keys(self, keys: dict[Key, str | None]) -> None:
        """Send one batch of keys and remove them from `keys`."""
        batch = dict(islice(keys.items(), _BATCH))
        events = {key: version for key, version in batch.items() if version}
        if len(events) < len(batch):
            self._queue.add([key for key in batch if key not in events])
        if events:
            self._queue.add_events(events)
        for key in batch:
            del keys[key]

    def _put_back(self, batch: _Pending) -> None:
        """Keep the unsent part of the batch, except data that newer data has replaced."""
        with self._lock:
            newer = self._pending
            if newer.is_cut:  # everything is relisted, and these lists miss the dropped entries
                return
            entries = {
                identity: value
                for identity, value in batch.entries.items()
                if identity[0] not in newer.lists
            }
            batch.lists.update(newer.lists)
            entries.update(newer.entries)
            batch.entries = entries
            for key, version in newer.keys.items():
                waits = batch.keys.pop(key, None)
                batch.keys[key] = "" if waits == "" and version is not None else version
            batch.everything |= newer.everything
            if newer.fresh[0]:
                batch.fresh = newer.fresh
            batch.cut(self._most_waiting)
            self._pending = batch


def _interleaved(keys: Iterable[Key]) -> list[Key]:
    """Return the keys, alternating between the queues, so that no queue has to wait for another."""
    lanes: defaultdict[str, list[Key]] = defaultdict(list)
    for key in keys:
        lanes[key.lane].append(key)
    rounds = zip_longest(*lanes.values())
    return [key for key in chain.from_iterable(rounds) if key is not None]
