"""How does what the reflectors see reach Redis without their ever waiting for it?

Reflector threads put their conclusions here; one thread sends them, catalog before keys, so that
a worker that takes a claim finds its class. Keys of a controller wait until this watcher has
listed each kind of the catalog that the controller reads: after a restart the catalog in Redis is
complete, but as old as the last watch over it (client-go: WaitForCacheSync). While Redis is away
everything waits, newest value per name; when it is back all is sent in order. Of more names than
fit none is kept: everything is then listed and added again once Redis is back.
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

# Keys per call, so that a large burst does not hold up the catalog behind it.
_BATCH = 500
# Names that may wait while Redis is away, some 100 MB; what is more costs less as a new list.
MOST_WAITING: Final = 200_000
# Keys that become due each second when everything is added, at a resync or after Redis lost its
# data: well below what one worker takes, so that new claims keep their latency.
SPREAD_PER_SECOND: Final = 200.0


class Queue(Protocol):
    """The part of workers.queue.WorkQueue that is used here."""

    def add(self, keys: Iterable[Key], *, delay_seconds: float = 0.0) -> None:
        """Make keys dirty."""

    def add_events(self, versions: Mapping[Key, str]) -> None:
        """Make keys dirty unless this version of their objects was added a moment ago."""

    def forget(self, keys: Iterable[Key]) -> None:
        """Drop counters of deleted objects."""


class Catalog(Protocol):
    """The part of workers.queue.catalog.CatalogWriter that is used here."""

    def write(self, kind: str, entries: Iterable[tuple[str, str, Mapping[str, Any] | None]]) -> int:
        """Write entries (name, version, value or None for gone) unless newer ones are there."""

    def replace(
        self,
        kind: str,
        items: Iterable[tuple[str, str, Mapping[str, Any]]],
        list_resource_version: str,
    ) -> str:
        """Write a complete list; returns the newest version of what is newer than it, or ""."""

    def mark_complete(self, kinds: Iterable[str], epoch: str) -> bool:
        """Declare a kind complete in an epoch; False when that epoch is over."""

    def keep_fresh(self, kinds: Iterable[str], epoch: str) -> None:
        """Say that a watch over these kinds is open and everything it brought is written."""


@dataclass(frozen=True, slots=True)
class CatalogList:
    """A complete list of one kind.

    Attributes:
        items: name -> (resourceVersion, value).
        version: resourceVersion of the list.
        epoch: life of Redis that was known when the list was begun.
    """

    items: dict[str, tuple[str, Mapping[str, Any]]]
    version: str
    epoch: str


@dataclass(slots=True)
class _Pending:
    """Not sent yet.

    Attributes:
        entries: `None` as a value stands for a removal.
        keys: the object's resourceVersion, "" for an add that stands for no version, `None` for
            forgetting the key.
        everything: all undecided keys are to be added; which ones is asked when they are sent.
        fresh: kinds of the catalog whose watch is open, and the life of Redis.
        is_cut: too much waited and was dropped.
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
        """Drop what is more than fits; also the lists, which such entries may have followed."""
        if len(self.keys) + len(self.entries) > most:
            self.lists.clear()
            self.keys.clear()
            self.entries.clear()
            self.is_cut = True


class Outbox:
    """Sends to Redis when its one thread calls `step`; all other methods return at once.

    Args:
        queue: where keys go.
        catalog: where catalog entries go.
        all_keys: returns the keys of everything undecided.
        on_newer: called with a kind and a version when Redis holds entries of it that are newer
            than the list just written, before the list counts as complete; raises to try again.
        on_cut: called first once Redis is back after too much waited; lists everything again, and
            sees to it that nobody goes by the old lists meanwhile; raises while Redis is away.
        most_waiting: keys and entries that wait at most while Redis is away.
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
        # By kind of the catalog that was not listed yet: the kinds of keys that rest on it.
        self._awaited: dict[str, set[str]] = {}
        self._held: dict[Key, str] = {}
        self._listed: set[str] = set()
        self._wake: Callable[[], None] = lambda: None

    def on_waiting(self, wake: Callable[[], None]) -> None:
        """Say who is called whenever something waits to be sent."""
        self._wake = wake

    def add(self, keys: Iterable[Key], *, version: str = "") -> None:
        """Add keys soon; a key that waits here is added once.

        Args:
            keys: any number.
            version: of the event if the add is only about this event of their object.
        """
        with self._lock:
            held = self._held_kinds()
            for key in keys:
                waiting = self._held if key.kind in held else self._pending.keys
                # An add without a version asks for a pass in any case.
                waits = waiting.pop(key, None)
                waiting[key] = "" if waits == "" else version
            self._changed_keys()

    def hold(self, key_kinds: Iterable[str], kind: str) -> None:
        """Keep back keys of these kinds until this kind of the catalog was listed once."""
        with self._lock:
            if kind not in self._listed:
                self._awaited.setdefault(kind, set()).update(key_kinds)

    def add_everything(self) -> None:
        """Add the keys of everything undecided soon, spread over time, the first ones at once."""
        with self._lock:
            self._pending.everything = True
            self._wake()

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget keys soon; supersedes an earlier add of the same key."""
        with self._lock:
            for key in keys:
                # Popped first, so that the order of sending is that of the last event.
                self._pending.keys.pop(key, None)
                self._held.pop(key, None)
                self._pending.keys[key] = None
            self._changed_keys()

    def put(self, kind: str, name: str, version: str, value: Mapping[str, Any] | None) -> None:
        """Write a catalog entry soon; `value` None removes it."""
        with self._lock:
            self._pending.entries[kind, name] = (version, value)
            self._pending.cut(self._most_waiting)
            self._wake()

    def replace(self, kind: str, listed: CatalogList) -> None:
        """Write a whole kind soon; entries of it that wait are older and superseded."""
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
        """Say soon that these kinds are watched; sent after every entry that waits now."""
        with self._lock:
            self._pending.fresh = (kinds, epoch)
            self._wake()

    @property
    def waiting(self) -> int:
        """How many keys and entries wait, without those of complete lists."""
        with self._lock:
            return len(self._pending.keys) + len(self._held) + len(self._pending.entries)

    @property
    def is_idle(self) -> bool:
        """Whether everything was sent but keys that are held back."""
        with self._lock:
            return not self._pending and not self._is_sending

    def step(self) -> None:
        """Send what waits.

        Raises:
            TransientError: Redis is away; what was not sent waits for the next step.
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
        """Send everything, taking out what was sent.

        First what frees memory: a Redis that is nearly full refuses the rest.
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
            # A refusal means Redis lost its data meanwhile: the keeper asks for a new list.
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
            # From the beginning after a failure: adding a key twice changes nothing.
            keys, size = self._free(self._all_keys()), max(1, int(SPREAD_PER_SECOND / 2))
            for start in range(0, len(keys), size):
                delay_seconds = start / SPREAD_PER_SECOND
                self._queue.add(keys[start : start + size], delay_seconds=delay_seconds)
            batch.everything = False

    def _held_kinds(self) -> set[str]:
        """The kinds of keys that wait for a list; call with the lock."""
        return set[str]().union(*self._awaited.values())

    def _free(self, keys: Iterable[Key]) -> list[Key]:
        """Return the keys that may be sent now, lanes taking turns; hold the others back."""
        keys = list(keys)
        with self._lock:
            held = self._held_kinds()
            self._held.update((key, "") for key in keys if key.kind in held)
        return _interleaved(key for key in keys if key.kind not in held)

    def _send_keys(self, keys: dict[Key, str | None]) -> None:
        """Add some, and take them out."""
        batch = dict(islice(keys.items(), _BATCH))
        events = {key: version for key, version in batch.items() if version}
        if len(events) < len(batch):
            self._queue.add([key for key in batch if key not in events])
        if events:
            self._queue.add_events(events)
        for key in batch:
            del keys[key]

    def _put_back(self, batch: _Pending) -> None:
        """Keep what was not sent, unless something newer came meanwhile."""
        with self._lock:
            newer = self._pending
            if newer.is_cut:  # all is listed and added again, and our lists lack what was dropped
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
    """Let the lanes take turns, so that none waits until all of another is added."""
    lanes: defaultdict[str, list[Key]] = defaultdict(list)
    for key in keys:
        lanes[key.lane].append(key)
    rounds = zip_longest(*lanes.values())
    return [key for key in chain.from_iterable(rounds) if key is not None]
