"""Moves the records of the release before into the keys of their drivers.

That release kept the records of all drivers in one hash for each family. This module and `FORMER`
go with the next release.
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
    """Move what is left there; overwrites nothing, and may be repeated.

    A watcher must not write unsaved PVs (users.acl), so it leaves them. Their intents move, and the
    driver is asked for each volume again, by its name.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    # Unsaved PVs first: the intent beside one names its driver.
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
        if name != "unsaved":  # of a claim whose intent is gone or has moved
            quarantine(client, place, field, raw)
        return
    pipe = client.pipeline(transaction=True)
    pipe.hsetnx(driver_key(client, name, driver), field, raw)
    pipe.hdel(place, field)
    pipe.execute()


def _driver_of(client: redis.Redis, name: str, field: str, raw: bytes) -> str | None:
    """The driver's part of the record's key; None where nothing tells it."""
    key: Any = field
    if name in {"intents", "unsaved"}:
        beside = raw if name == "intents" else client.hget(proof_place(client, "intents"), field)
        key = (peek(beside or b"") or {}).get("key")
    try:
        return Key.parse(str(key)).driver
    except ValueError:
        return None
