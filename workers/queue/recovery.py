"""Adds the keys of attempts that have a record but no key anywhere in the queue.

The key of an intent or unsaved PV is normally in the queue. If Redis lost its data between two
writes, or if a key was deleted by hand, a record may be left without its key. If the claim has been
deleted, no event will ever add its key again (M-010 step 6). So once a minute, one process searches
for such records.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from workers.errors import ProvisionerError
from workers.observability.logging import get_logger
from workers.queue import formerrecords
from workers.queue.keys import Key
from workers.queue.names import driver_key, redis_key
from workers.queue.periods import Periods
from workers.queue.records import UNREADABLE, drivers_with
from workers.queue.scripts import reading
from workers.queue.seal import content, tenant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import redis

    from workers.queue.workqueue import WorkQueue

KeysOfVolume: TypeAlias = "Callable[[dict[str, Any]], Iterable[Key]]"

_log = get_logger(__name__)

PERIOD_SECONDS = 60.0
# The stage that workers.controllers.provisioner.intent writes when an operator must act (see
# `csi-fleet audit`).
_STAGE_STRANDED = "stranded"
# The number of records to read per round trip.
_CHUNK = 200


class _IntentKey(msgspec.Struct):
    key: str = ""
    stage: str = ""


_decode_intent = msgspec.json.Decoder(_IntentKey).decode
_decode_volume = msgspec.json.Decoder(dict[str, Any]).decode


class Recovery:
    """Adds the missing keys of attempts.

    Args:
        client: the Redis client.
        queue: the queue to which the keys are added.
        period_seconds: the interval between searches; one of the processes that call `run` makes
            each search.
    """

    def __init__(
        self, client: redis.Redis, queue: WorkQueue, *, period_seconds: float = PERIOD_SECONDS
    ) -> None:
        self._client = client
        self._periods = Periods(client)
        self._held = redis_key(client, "held")
        self._queue = queue
        self._period_seconds = period_seconds

    def run(self, keys_of_volume: KeysOfVolume) -> bool:
        """Search, unless a process has searched within the period; return True after a search.

        Reads the records in batches and adds only keys that are nowhere in the queue. If a record
        is finished meanwhile, its key causes one reconcile that finds nothing to do.

        Args:
            keys_of_volume: returns the keys of an unsaved PV's claim, or none while no worker
                serves the PV's driver; raises ProvisionerError for a PV without a claim.

        Raises:
            QueueUnavailable: Redis does not answer; the next period repeats the whole search.
        """
        if not self._periods.is_due("recovery", self._period_seconds):
            return False
        # A mark may be moved long after its key was last reconciled (see `formerrecords.adopt`).
        self._queue.ensure(self.adopt())
        for keys in self._chunks(keys_of_volume):
            self._queue.ensure(keys)
        return True

    def adopt(self) -> list[Key]:
        """Move the previous release's records; call this once, before any key is added.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        return formerrecords.adopt(self._client)

    def _chunks(self, keys_of_volume: KeysOfVolume) -> Iterator[list[Key]]:
        held: Counter[str] = Counter()
        for _, chunk in self._scan("intents"):
            for raw in chunk.values():
                held[tenant_of(raw)] += len(raw)
            yield [key for raw in chunk.values() if (key := _key_of_intent(raw))]
        self._weigh(held)
        for driver, chunk in self._scan("unsaved"):
            with reading(self._client):
                name = driver_key(self._client, "intents", driver)
                intents = self._client.hmget(name, list(chunk))
            alone = [raw for raw, intent in zip(chunk.values(), intents, strict=True) if not intent]
            yield [key for raw in alone for key in _keys_of_unsaved(raw, keys_of_volume)]

    def _weigh(self, held: Counter[str]) -> None:
        """Store the recounted bytes by namespace, because dropped records make the counts drift."""
        counts: Any = {name: count for name, count in held.items() if name}
        with reading(self._client):
            pipe = self._client.pipeline(transaction=True)
            pipe.delete(self._held)
            if counts:
                pipe.hset(self._held, mapping=counts)
            pipe.execute()

    def _scan(self, name: str) -> Iterator[tuple[str, dict[Any, Any]]]:
        """Yield a family's records in batches, each batch with its driver."""
        with reading(self._client):
            drivers = drivers_with(self._client, name)
        for driver in drivers:
            cursor, is_first = 0, True
            while cursor or is_first:
                with reading(self._client):
                    key = driver_key(self._client, name, driver)
                    cursor, chunk = self._client.hscan(key, cursor, count=_CHUNK)
                is_first = False
                if isinstance(chunk, dict) and chunk:
                    yield driver, chunk


def _key_of_intent(raw: bytes) -> Key | None:
    try:
        intent = _decode_intent(content(raw))
        return None if intent.stage == _STAGE_STRANDED else Key.parse(intent.key)
    except UNREADABLE as error:
        # The record is only skipped here: its next reader will quarantine it.
        _log.warning("the record of an attempt has no readable key", err=error)
        return None


def _keys_of_unsaved(raw: bytes, keys_of_volume: KeysOfVolume) -> list[Key]:
    """Return the claim keys of an unsaved PV whose intent is missing."""
    try:
        return list(keys_of_volume(_decode_volume(content(raw))))
    except (*UNREADABLE, ProvisionerError) as error:
        _log.warning("the record of an unsaved volume has no readable claim", err=error)
        return []
