"""Moves the records of the previous release into the keys of their drivers.

The previous release kept the records of all drivers in one hash per family. The next release
removes this module and `FORMER`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from workers.observability.logging import get_logger
from workers.queue.connection import NoPermissionError, WatchError
from workers.queue.keys import Key
from workers.queue.names import FORMER, driver_key, proof_place
from workers.queue.records import peek, quarantine
from workers.queue.scripts import reading, text

if TYPE_CHECKING:
    import redis

_log = get_logger(__name__)

_TRIES: Final = 5


def adopt(client: redis.Redis) -> list[Key]:
    """Move the remaining records of the previous release; overwrite nothing. Safe to repeat.

    If a newer record already exists under the new key, the old record stays where it is until the
    newer attempt has ended, because the old record's call may still be running. A watcher is not
    allowed to write unsaved PVs (users.acl), so it leaves them in place. The intents of these PVs
    are moved, and the driver is called again for each volume, by name.

    Returns:
        The keys whose marks were moved.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    moved = []
    # Unsaved PVs are moved first: the intent that is stored with an unsaved PV names its driver.
    for name in sorted(FORMER, reverse=True):
        place = proof_place(client, name)
        with reading(client):
            try:
                rows = [(text(field), raw) for field, raw in client.hscan_iter(place, count=200)]
                done = [field for field, raw in rows if _move(client, name, field, raw)]
            except NoPermissionError:
                _log.warning(
                    "could not move the records of the previous release; they remain where "
                    "they are",
                    redis_key=place,
                )
                continue
        moved += [Key.parse(field) for field in done] if name == "marks" else []
    return moved


def _move(client: redis.Redis, name: str, field: str, raw: bytes) -> bool:
    place, driver = proof_place(client, name), _driver_of(client, name, field, raw)
    if driver is None:
        if name != "unsaved":  # an unsaved PV is kept if its intent is gone or has moved
            quarantine(client, place, field, raw)
        return False
    goal, attempt = (driver_key(client, one, driver) for one in (name, "intents"))
    untyped: Any = client.pipeline(transaction=True)
    for _ in range(_TRIES):
        with suppress(WatchError), untyped as pipe:
            pipe.watch(place, goal, attempt)
            is_newer = pipe.hexists(goal, field) or pipe.hexists(attempt, field)
            if pipe.hget(place, field) != raw or (is_newer and name != "memos"):
                return False
            pipe.multi()
            pipe.hsetnx(goal, field, raw)
            pipe.hdel(place, field)
            pipe.execute()
            return True
    return False  # other workers keep writing here: the next call retries


def _driver_of(client: redis.Redis, name: str, field: str, raw: bytes) -> str | None:
    """Return the driver part of the record's key; None if no record contains the key."""
    key: Any = field
    if name in {"intents", "unsaved"}:
        beside = raw if name == "intents" else client.hget(proof_place(client, "intents"), field)
        key = (peek(beside or b"") or {}).get("key")
    try:
        return Key.parse(str(key)).driver
    except ValueError:
        return None
