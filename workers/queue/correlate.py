"""Does one more event about an object become a new Event, a higher count, or nothing?

client-go's EventCorrelator with one memory for all workers and restarts (L-006): identical events
become one with a count; of those that differ only in the message within ten minutes the tenth and
all new ones after it are merged into one; per source, object and type (`Normal`, `Warning`) a
bucket of 25 writes, refilled by one each five minutes.

Source: client-go tools/record/events_cache.go.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.queue.scripts import Scripts, text
from workers.queue.tokens import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import redis

# Upstream merges from the tenth message on (`localKeys.Len() < maxEvents`), whatever its text says.
MAX_SIMILAR: Final = 9
SIMILAR_SECONDS: Final = 600
BURST: Final = 25
REFILL_SECONDS: Final = 300
# The API server keeps events for an hour by default; a count for a longer-gone one is useless.
EVENT_SECONDS: Final = 3600
MERGED_PREFIX: Final = "(combined from similar events): "

# Upstream's getEventKey: the object's resourceVersion does not make it another object.
_REFERENCE_FIELDS: Final = ("kind", "namespace", "name", "fieldPath", "uid", "apiVersion")


@dataclass(frozen=True, slots=True)
class Create:
    """Write a new Event of this name with this message and count 1."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class Patch:
    """Patch count, message and lastTimestamp; when it is gone, create it under the same name."""

    name: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class Drop:
    """The budget is used up: write nothing."""


Decision = Create | Patch | Drop


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One event to decide about.

    Args:
        source: the reporting component, stable over restarts and the same in all workers.
        object_ref: the Event's involvedObject.
        type_: `Normal` or `Warning`.
        reason: for example `ProvisioningFailed`.
        message: the text; only its digest reaches Redis.
    """

    source: str
    object_ref: Mapping[str, str]
    type_: str
    reason: str
    message: str

    def arguments(self) -> tuple[str | int, ...]:
        """What the script is told."""
        reference = [self.object_ref.get(name, "") for name in _REFERENCE_FIELDS]
        token = new_token()
        return (
            token,
            # Upstream's getSpamKey: failures do not use up what a success may say.
            _digest(self.source, *reference, self.type_),
            _digest(self.source, *reference, self.type_, self.reason),
            _digest(self.message),
            f"{self.object_ref.get('name', 'event')}.{token[:16]}",
            MAX_SIMILAR,
            SIMILAR_SECONDS * 1000,
            BURST,
            REFILL_SECONDS * 1000,
            EVENT_SECONDS * 1000,
        )

    def decision(self, reply: Sequence[bytes]) -> Decision:
        """What the script's reply means."""
        answer, name, count, is_merged = reply
        shown = MERGED_PREFIX + self.message if is_merged else self.message
        if answer == b"create":
            return Create(text(name), shown)
        if answer == b"patch":
            return Patch(text(name), shown, int(count))
        return Drop()


class EventBudget:
    """Decides about events; one round trip for all that are asked together.

    Every key it writes has its time to live.
    """

    def __init__(self, client: redis.Redis, *, now_ms: Callable[[], int] | None = None) -> None:
        self._scripts = Scripts(client, now_ms)

    def decide(self, occurrences: Sequence[Occurrence]) -> list[Decision]:
        """What to write for each event, in this order.

        Raises:
            QueueUnavailable: Redis does not answer; events are droppable.
        """
        rows = [one.arguments() for one in occurrences]
        replies = self._scripts.run_each("correlate", rows)
        return [one.decision(reply) for one, reply in zip(occurrences, replies, strict=True)]
