"""Decides whether one more event becomes a new Event, a higher count, or nothing (L-006).

Identical events become one Event with a count. Of events that differ only in the message within ten
minutes the tenth and all new ones after it are merged into one. Each source, object and type
(`Normal`, `Warning`) has a bucket of 25 writes, refilled by one each five minutes.

The memory is the process's, as client-go's is: after a restart counts and budgets begin again.
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

# Upstream merges from the tenth message on (`localKeys.Len() < maxEvents`), whatever its text says.
MAX_SIMILAR: Final = 9
SIMILAR_SECONDS: Final = 600
BURST: Final = 25
REFILL_SECONDS: Final = 300
MERGED_PREFIX: Final = "(combined from similar events): "
# client-go's maxLruCacheEntries: the least recently used entry goes first.
CACHE_SIZE: Final = 4096

# Upstream's getEventKey: the object's resourceVersion does not make it another object.
_REFERENCE_FIELDS: Final = ("kind", "namespace", "name", "fieldPath", "uid", "apiVersion")

_Identity: TypeAlias = tuple[str, ...]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class EventPlan:
    """What to write for one event.

    Attributes:
        action: `create` a new Event, `patch` the count of an earlier one, or `drop`.
        name: of the Event.
        count: events so far.
        message: the text to write: the event's own, or the one for similar events.
    """

    action: Literal["create", "patch", "drop"]
    name: str
    count: int
    message: str


@dataclass(slots=True)
class _Similar:
    """Messages of events that differ only in the message."""

    newest_at: float
    messages: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Bucket:
    """Writes that an object has left."""

    refilled_at: float
    tokens: float = BURST


@dataclass(slots=True)
class _Written:
    """An Event that was written."""

    name: str
    count: int = 0


class _Cache(Generic[_T]):
    """The most recently used entries."""

    def __init__(self) -> None:
        self._entries: OrderedDict[_Identity, _T] = OrderedDict()

    def get(self, identity: _Identity) -> _T | None:
        """An entry, which is the most recently used one then."""
        if identity in self._entries:
            self._entries.move_to_end(identity)
        return self._entries.get(identity)

    def put(self, identity: _Identity, entry: _T) -> _T:
        """Add an entry; returns it."""
        self._entries[identity] = entry
        if len(self._entries) > CACHE_SIZE:
            self._entries.popitem(last=False)
        return entry


class EventCorrelator:
    """The budget of one process; safe for threads.

    Args:
        clock: seconds, never set back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._similar: _Cache[_Similar] = _Cache()
        self._buckets: _Cache[_Bucket] = _Cache()
        self._written: _Cache[_Written] = _Cache()
        self._lock = threading.Lock()

    def plan(self, event: JsonObject) -> EventPlan:
        """What to write for an Event as `workers.kube.events.make_event` builds it."""
        reference = event["involvedObject"]
        # Upstream's getSpamKey: failures do not use up what a success may say.
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
