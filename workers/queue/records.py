"""How is a JSON record kept in a Redis hash, and what if somebody broke it?

A record that does not decode is moved to the quarantine hash, reported once and then counts as
absent, so that one bad value cannot stop a worker twice.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from workers.queue.names import NAMES
from workers.queue.scripts import text

if TYPE_CHECKING:
    from collections.abc import Mapping

    import redis

_log = logging.getLogger(__name__)

_QUARANTINE_SECONDS = 7 * 24 * 3600
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(dict[str, Any])


def encode(record: Mapping[str, Any]) -> bytes:
    """One record as compact JSON; equal records give equal bytes only by accident of key order."""
    return _encoder.encode(record)


def decode(client: redis.Redis, key: str, field: str, raw: bytes | str) -> dict[str, Any] | None:
    """Read one record back; None after setting an unreadable one aside."""
    try:
        return _decoder.decode(raw)
    except msgspec.MsgspecError:
        quarantine(client, key, field, raw)
        return None


def quarantine(client: redis.Redis, key: str, field: str, raw: bytes | str) -> None:
    """Move an unreadable field of a hash aside; safe to repeat."""
    aside = NAMES["quarantine"].full
    pipe = client.pipeline(transaction=True)
    pipe.hset(aside, f"{key} {field}", raw)
    pipe.expire(aside, _QUARANTINE_SECONDS)
    pipe.hdel(key, field)
    pipe.execute()
    _log.error(
        "Redis record is unreadable and was set aside; it counts as absent. Look at it in the "
        "quarantine hash, then delete it there",
        extra={"redis_key": key, "field": text(field), "quarantine": aside},
    )
