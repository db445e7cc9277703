"""Moves the previous release's records into the keys of their drivers.

That release kept the records of all drivers in one hash per family. The next release removes this
module and `FORMER`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.observability.logging import get_logger
from workers.queue.connection import NoPermissionError
from workers.queue.keys import Key
from workers.queue.names import FORMER, driver_key, proof_place
from workers.queue.records import peek, quarantine
from workers.queue.scripts import reading, text

if TYPE_CHECKING:
    import redis

_log = get_logger(__name__)


def adopt(client: redis.Redis) -> None:
    """Move the records that are left there; overwrites no record, and may be repeated.

    A watcher is not allowed to write unsaved PVs (users.acl), so it leaves them. Their intents
    move, and the driver gets CreateVolume again with the same name.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    # Unsaved PVs first: the intent of the same domain names the driver.
    for name in sorted(FORMER, reverse=True):
        place = proof_place(client, name)
        with reading(client):
            rows = [(text(field), raw) for field, raw in client.hscan_iter(place, count=200)]
            try:
                for field, raw in rows:
                    _move(client, name, field, raw)
            except NoPermissionError:
                _log.warning("records of the release before stay where they are", redis_key=place)


def _move(client: redis.Redis, name: str, field: str, raw: bytes) -> None:
    place, driver = proof_place(client, name), _driver_of(client, name, field, raw)
    if driver is None:
        if name != "unsaved":  # an unsaved PV whose intent is gone or has moved stays
            quarantine(client, place, field, raw)
        return
    pipe = client.pipeline(transaction=True)
    pipe.hsetnx(driver_key(client, name, driver), field, raw)
    pipe.hdel(place, field)
    pipe.execute()


def _driver_of(client: redis.Redis, name: str, field: str, raw: bytes) -> str | None:
    """Return the driver part of the record's key; None if no record names it."""
    key: Any = field
    if name in {"intents", "unsaved"}:
        beside = raw if name == "intents" else client.hget(proof_place(client, "intents"), field)
        key = (peek(beside or b"") or {}).get("key")
    try:
        return Key.parse(str(key)).driver
    except ValueError:
        return None
