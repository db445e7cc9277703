"""Reads and writes JSON records in Redis hashes, and quarantines broken records.

A record that cannot be decoded, or that no worker signed, is moved to the quarantine hash and
logged once. From then on it counts as absent, so that one bad value cannot stop a worker twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec

from workers.observability.logging import get_logger
from workers.queue import seal as sealing
from workers.queue.connection import NoPermissionError, WatchError
from workers.queue.names import literal, redis_key
from workers.queue.scripts import text

if TYPE_CHECKING:
    from collections.abc import Mapping

    import redis
    from redis.client import Pipeline

    from workers.queue.seal import Seal

_log = get_logger(__name__)

_QUARANTINE_SECONDS = 7 * 24 * 3600
_UNREADABLE = "the record is unreadable. Inspect it in the quarantine hash, then delete it there"
_FORGED = (
    "the record was not signed with this worker's records key. Find out who else writes to Redis. "
    "After a change of the key, keep the old key as an additional line of --records-key-file for a "
    "while (docs/security.md)"
)
# Errors from decoding untrusted bytes: invalid JSON, invalid UTF-8 inside it, or nesting that is
# too deep.
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(dict[str, Any])


def encode(record: Mapping[str, Any]) -> bytes:
    """Encode a record as compact JSON; the bytes depend on the order of the keys."""
    return _encoder.encode(record)


def decode(client: redis.Redis, key: str, field: str, raw: bytes | str) -> dict[str, Any] | None:
    """Decode a record; quarantine it and return None if it is unreadable."""
    found = peek(raw)
    if found is None:
        quarantine(client, key, field, raw)
    return found


def unseal(
    client: redis.Redis, seal: Seal, place: str, key: str, *, field: str, raw: bytes | str
) -> dict[str, Any] | None:
    """Verify and decode a worker's record; quarantine it and return None if that fails.

    Args:
        client: the Redis client.
        seal: the workers' signing keys.
        place: the place that the signature covers (see `proof_place`).
        key: the Redis key of the hash.
        field: the field of the hash.
        raw: the field's value.
    """
    raw = _bytes(raw)
    if seal.is_ours(place, field, raw):
        return decode(client, key, field, raw)
    quarantine_forged(client, key, field, raw)
    return None


def drivers_with(client: redis.Redis, name: str) -> list[str]:
    """Return the drivers with a key in a `by_driver` family, if this user may read the key."""
    prefix = redis_key(client, name)
    keys = sorted({text(one) for one in client.scan_iter(match=f"{literal(prefix)}*", count=1000)})
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.exists(key)
    answers = allowed(pipe)
    return [
        unquote(key.removeprefix(prefix)) for key, found in zip(keys, answers, strict=True) if found
    ]


def allowed(pipe: Pipeline) -> list[Any]:
    """Return a pipeline's replies; None for each key that this Redis user may not read."""
    answers = []
    for one in pipe.execute(raise_on_error=False):
        if isinstance(one, Exception) and not isinstance(one, NoPermissionError):
            raise one
        answers.append(None if isinstance(one, Exception) else one)
    return answers


def peek(raw: bytes | str) -> dict[str, Any] | None:
    """Decode a record without verifying any signature; None if it is unreadable."""
    try:
        return _decoder.decode(sealing.content(_bytes(raw)))
    except UNREADABLE:
        return None


def quarantine(
    client: redis.Redis, key: str, field: str, raw: bytes | str, why: str = _UNREADABLE
) -> None:
    """Move an unusable field of a hash to the quarantine; safe to repeat.

    The field is moved only if its value is still the one that was read, because the field's owner
    may have written a valid record since then. If the hash has changed meanwhile, the next reader
    moves the field. If this Redis user has no permission to move it, the field's owner moves it.
    """
    aside = redis_key(client, "quarantine")
    untyped: Any = client.pipeline(transaction=True)
    try:
        with untyped as pipe:
            pipe.watch(key)
            if _bytes(pipe.hget(key, field)) != _bytes(raw):
                return
            pipe.multi()
            pipe.hset(aside, f"{key} {field}", raw)
            pipe.expire(aside, _QUARANTINE_SECONDS)
            pipe.hdel(key, field)
            pipe.execute()
    except WatchError:
        return
    except NoPermissionError:
        _log.error(
            "a record in Redis is unreadable; it was left in place",
            redis_key=key,
            field=text(field),
        )
        return
    _log.error(
        "a record in Redis was moved to the quarantine hash and is treated as absent",
        redis_key=key,
        field=text(field),
        quarantine=aside,
        why=why,
    )


def quarantine_forged(client: redis.Redis, key: str, field: str, raw: bytes) -> None:
    """Quarantine a record that no worker signed."""
    quarantine(client, key, field, raw, _FORGED)


def _bytes(raw: Any) -> bytes:
    return raw.encode() if isinstance(raw, str) else raw or b""
