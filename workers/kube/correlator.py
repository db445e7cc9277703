"""Decides whether an event becomes a new Event, adds to an existing one, or is dropped (L-006).

Identical events become one Event with a count. If ten events within ten minutes differ only in the
message, the tenth and all later ones are merged into one. For each source, object and type
(`Normal`, `Warning`) there is a budget of 25 writes, which grows by one every five minutes.

As in client-go, the state is kept in memory: after a restart, counts and budgets start again.
Source: client-go tools/record/events_cache.go.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.kube.objects import JsonObject

# Upstream merges from the tenth message on (`localKeys.Len() < maxEvents`), contrary to its own
# comment.
MAX_SIMILAR: Final = 9
SIMILAR_SECONDS: Final = 600
BURST: Final = 25
REFILL_SECONDS: Final = 300
MERGED_PREFIX: Final = "(combined from similar events): "
# client-go's maxLruCacheEntries: the least recently used entry is dropped first.
CACHE_SIZE: Final = 4096

# Upstream's getEventKey: the resourceVersion is not part of an object's identity.
_REFERENCE_FIELDS: Final = ("kind", "namespace", "name", "fieldPath", "uid", "apiVersion")

_Identity: TypeAlias = tuple[str, ...]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class EventPlan:
    """The write that one event causes.

    Attributes:
        action: `create` a new Event, `patch` the count of an earlier one, or `drop` the event.
        name: the name of the Event.
        count: the number of events so far.
        message: the message to write: the event's own, or the one for merged events.
    """

    action: Literal["create", "patch", "drop"]
    name: str
    count: int
    message: str


@dataclass(slots=True)
class _Similar:
    """The messages of events that differ only in their message."""

    newest_at: float
    messages: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Bucket:
    """The remaining write budget of one source, object and type."""

    refilled_at: float
    tokens: float = BURST


@dataclass(slots=True)
class _Written:
    """An Event that was written earlier."""

    name: str
    count: int = 0


class _Cache(Generic[_T]):
    """An LRU cache of `CACHE_SIZE` entries."""

    def __init__(self) -> None:
        self._entries: OrderedDict[_Identity, _T] = OrderedDict()

    def get(self, identity: _Identity) -> _T | None:
        """Return an entry and mark it as the most recently used one."""
        if identity in self._entries:
            self._entries.move_to_end(identity)
        return self._entries.get(identity)

    def put(self, identity: _Identity, entry: _T) -> _T:
        """Add an entry, and return it."""
        self._entries[identity] = entry
        if len(self._entries) > CACHE_SIZE:
            self._entries.popitem(last=False)
        return entry


class EventCorrelator:
    """Plans the writes for all events of one process; thread-safe.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._similar: _Cache[_Similar] = _Cache()
        self._buckets: _Cache[_Bucket] = _Cache()
        self._written: _Cache[_Written] = _Cache()
        self._lock = threading.Lock()

    def plan(self, event: JsonObject) -> EventPlan:
        """Return what to write for an Event built by `workers.kube.events.make_event`."""
        reference = event["involvedObject"]
        # Upstream's getSpamKey: warnings do not use up the budget of normal events.
        source = (
            event["source"]["component"],
            *(reference.get(one, "") for one in _REFERENCE_FIELDS),
        )
        spam = (*source, event["type"])
        similar = (*spam, event["reason"])
        message = event["message"]
        with self._lock:
            is_merged = self._is_merged(similar, message)
            identity = similar if is_merged else (*similar, str(hash(message)))
            known = self._written.get(identity)
            shown = MERGED_PREFIX + message if is_merged else message
            if known is not None:
                known.count += 1
            if not self._takes_token(spam):
                return EventPlan("drop", "", 0, shown)
            if known is None:
                known = self._written.put(identity, _Written(event["metadata"]["name"], 1))
                return EventPlan("create", known.name, 1, shown)
            return EventPlan("patch", known.name, known.count, shown)

    def _is_merged(self, identity: _Identity, message: str) -> bool:
        now, digest = self._clock(), hash(message)
        found = self._similar.get(identity)
        if found is None or now - found.newest_at > SIMILAR_SECONDS:
            found = self._similar.put(identity, _Similar(now))
        found.newest_at = now
        if digest not in found.messages and len(found.messages) >= MAX_SIMILAR:
            return True
        found.messages.add(digest)
        return False

    def _takes_token(self, identity: _Identity) -> bool:
        now = self._clock()
        bucket = self._buckets.get(identity) or self._buckets.put(identity, _Bucket(now))
        refilled = bucket.tokens + (now - bucket.refilled_at) / REFILL_SECONDS
        bucket.tokens, bucket.refilled_at = min(BURST, refilled), now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True
