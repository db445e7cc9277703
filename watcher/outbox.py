"""How does what the reflectors see reach Redis without their ever waiting for it?

Reflector threads put their conclusions here; one thread sends them, catalog before keys, so that
a worker that takes a claim finds its class. While Redis is away everything waits, newest value
per name, so memory is bounded by the number of names; when it is back all is sent in order.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from workers.errors import TransientError
from workers.kube.backoff import Backoff
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.queue.keys import Key

_log = get_logger()

# Keys per call, so that a large burst does not hold up the catalog behind it.
_BATCH = 500


class Queue(Protocol):
    """The part of workers.queue.WorkQueue that is used here."""

    def add(self, keys: Iterable[Key], *, delay_seconds: float = 0.0) -> None:
        """Make keys dirty."""

    def forget(self, key: Key) -> None:
        """Drop counters of a deleted object."""


class Catalog(Protocol):
    """The part of workers.queue.catalog.CatalogWriter that is used here."""

    def put(self, kind: str, name: str, resource_version: str, value: Mapping[str, Any]) -> bool:
        """Write one entry unless a newer one is there."""

    def remove(self, kind: str, name: str, resource_version: str) -> bool:
        """Remove one entry unless a newer one is there."""

    def replace(
        self,
        kind: str,
        items: Iterable[tuple[str, str, Mapping[str, Any]]],
        list_resource_version: str,
    ) -> None:
        """Write a complete list."""

    def mark_complete(self, kinds: Iterable[str], epoch: str) -> bool:
        """Declare a kind complete in an epoch; False when that epoch is over."""


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
    """Not sent yet. `None` as a value stands for a removal, `False` for forgetting a key."""

    lists: dict[str, CatalogList] = field(default_factory=dict)
    entries: dict[tuple[str, str], tuple[str, Mapping[str, Any] | None]] = field(
        default_factory=dict
    )
    keys: dict[Key, bool] = field(default_factory=dict)
    later: list[tuple[float, list[Key]]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lists or self.entries or self.keys or self.later)


class Outbox:
    """Sends to Redis from one thread; all other methods return at once.

    Args:
        queue: where keys go.
        catalog: where catalog entries go.
        backoff: waits while Redis is away.
    """

    def __init__(self, queue: Queue, catalog: Catalog, *, backoff: Backoff | None = None) -> None:
        self._queue = queue
        self._catalog = catalog
        self._backoff = backoff or Backoff(base_seconds=0.1, cap_seconds=2.0)
        self._changed = threading.Condition()
        self._pending = _Pending()
        self._is_sending = False
        self._is_down = False
        self._stopped = threading.Event()

    def add(self, keys: Iterable[Key]) -> None:
        """Add keys soon; a key that waits here is added once."""
        self._put_keys(keys, is_add=True)

    def add_spread(self, keys: list[Key], *, per_second: float) -> None:
        """Add many keys over time, the first ones at once.

        Args:
            keys: any number.
            per_second: how many become due each second.
        """
        size = max(1, int(per_second / 2))
        with self._changed:
            for start in range(0, len(keys), size):
                self._pending.later.append((start / per_second, keys[start : start + size]))
            self._changed.notify()

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget keys soon; supersedes an earlier add of the same key."""
        self._put_keys(keys, is_add=False)

    def put(self, kind: str, name: str, version: str, value: Mapping[str, Any] | None) -> None:
        """Write a catalog entry soon; `value` None removes it."""
        with self._changed:
            self._pending.entries[kind, name] = (version, value)
            self._changed.notify()

    def replace(self, kind: str, listed: CatalogList) -> None:
        """Write a whole kind soon; entries of it that wait are older and superseded."""
        with self._changed:
            entries = self._pending.entries
            for identity in [identity for identity in entries if identity[0] == kind]:
                del entries[identity]
            self._pending.lists[kind] = listed
            self._changed.notify()

    @property
    def is_idle(self) -> bool:
        """Whether everything was sent."""
        with self._changed:
            return not self._pending and not self._is_sending

    @property
    def is_down(self) -> bool:
        """Whether the last attempt to send failed."""
        return self._is_down

    def run(self) -> None:
        """Send until `stop`; never raises for what Redis does."""
        while not self._stopped.is_set():
            with self._changed:
                while not self._pending and not self._stopped.is_set():
                    self._changed.wait()
                batch, self._pending = self._pending, _Pending()
                self._is_sending = True
            try:
                self._send(batch)
                self._recovered()
            except TransientError as error:
                self._put_back(batch)
                self._failed(str(error))
            except Exception as error:  # noqa: BLE001 - the loop must outlive any defect
                if not self._is_down:
                    _log.exception("unexpected error while writing to Redis")
                self._put_back(batch)
                self._failed(repr(error))
            finally:
                with self._changed:
                    self._is_sending = False

    def stop(self) -> None:
        """End `run` soon; what was not sent is found again by any watcher's list."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    def _put_keys(self, keys: Iterable[Key], *, is_add: bool) -> None:
        with self._changed:
            for key in keys:
                # Popped first, so that the order of sending is that of the last event.
                self._pending.keys.pop(key, None)
                self._pending.keys[key] = is_add
            if self._pending.keys:
                self._changed.notify()

    def _send(self, batch: _Pending) -> None:
        """Send everything, taking out what was sent."""
        while batch.lists:
            kind, listed = next(iter(batch.lists.items()))
            items = ((name, *entry) for name, entry in listed.items.items())
            self._catalog.replace(kind, items, listed.version)
            # A refusal means Redis lost its data meanwhile: the keeper asks for a new list.
            self._catalog.mark_complete([kind], listed.epoch)
            del batch.lists[kind]
        while batch.entries:
            (kind, name), (version, value) = next(iter(batch.entries.items()))
            if value is None:
                self._catalog.remove(kind, name, version)
            else:
                self._catalog.put(kind, name, version, value)
            del batch.entries[kind, name]
        while batch.keys:
            adds = [key for key, is_add in batch.keys.items() if is_add][:_BATCH]
            if adds:
                self._queue.add(adds)
            for key in adds:
                del batch.keys[key]
            if not adds:
                key = next(iter(batch.keys))
                self._queue.forget(key)
                del batch.keys[key]
        while batch.later:
            delay_seconds, keys = batch.later[0]
            self._queue.add(keys, delay_seconds=delay_seconds)
            del batch.later[0]

    def _put_back(self, batch: _Pending) -> None:
        """Keep what was not sent, unless something newer came meanwhile."""
        with self._changed:
            newer = self._pending
            entries = {
                identity: value
                for identity, value in batch.entries.items()
                if identity[0] not in newer.lists
            }
            batch.lists.update(newer.lists)
            entries.update(newer.entries)
            batch.entries = entries
            batch.keys.update(newer.keys)
            batch.later += newer.later
            self._pending = batch

    def _failed(self, message: str) -> None:
        if not self._is_down:
            _log.warning("Redis is away, events wait in memory", err=message)
        self._is_down = True
        self._stopped.wait(self._backoff.next_seconds())

    def _recovered(self) -> None:
        if self._is_down:
            _log.info("Redis works again, waiting events were sent")
        self._is_down = False
        self._backoff.reset()
