"""Which attempts are remembered but wait nowhere?

An intent or an unsaved PV normally has its key in the queue. A Redis that lost its data between
two writes, or a key somebody deleted by hand, can leave the record alone; for a claim that is gone
no event would ever bring it back (M-010 step 6). Each minute one process looks.
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
# As workers.controllers.provisioner.intent writes it: an operator's turn, see `csi-fleet audit`.
_STAGE_STRANDED = "stranded"
# Records read per round trip.
_CHUNK = 200


class _IntentKey(msgspec.Struct):
    key: str = ""
    stage: str = ""


_decode_intent = msgspec.json.Decoder(_IntentKey).decode
_decode_volume = msgspec.json.Decoder(dict[str, Any]).decode


class Recovery:
    """Gives every record of an attempt its key back.

    Args:
        client: the Redis client.
        queue: takes the keys.
        period_seconds: of all processes that ask, one looks per period.
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
        """Look now unless somebody did within the period; returns whether it looked.

        Reads in pieces and moves only keys that are nowhere, so a record that ends meanwhile costs
        one empty pass.

        Args:
            keys_of_volume: from a PV that was not saved to the keys of its claim, none while
                nobody serves its driver; raises ProvisionerError for one without a claim.

        Raises:
            QueueUnavailable: Redis does not answer; the next period repeats all of it.
        """
        if not self._periods.is_due("recovery", self._period_seconds):
            return False
        formerrecords.adopt(self._client)
        for keys in self._chunks(keys_of_volume):
            self._queue.ensure(keys)
        return True

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
        """Correct the bytes by namespace, which records that went another way leave wrong."""
        counts: Any = {name: count for name, count in held.items() if name}
        with reading(self._client):
            pipe = self._client.pipeline(transaction=True)
            pipe.delete(self._held)
            if counts:
                pipe.hset(self._held, mapping=counts)
            pipe.execute()

    def _scan(self, name: str) -> Iterator[tuple[str, dict[Any, Any]]]:
        """A family's records in pieces, each with its driver."""
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
        # Whoever reads the record sets it aside; here it is only skipped.
        _log.warning("intent without a readable key", err=error)
        return None


def _keys_of_unsaved(raw: bytes, keys_of_volume: KeysOfVolume) -> list[Key]:
    """The claim keys of an unsaved PV whose intent is missing."""
    try:
        return list(keys_of_volume(_decode_volume(content(raw))))
    except (*UNREADABLE, ProvisionerError) as error:
        _log.warning("unsaved volume without a readable claim", err=error)
        return []
