"""Stores a shadow's predictions of the sidecar's actions, and the verdicts on them.

For each driver, this module stores the open predictions by object, the counts of verdicts, and the
last differences. It does no harm if all of this is lost: the next reconcile predicts again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from workers.queue.names import redis_key
from workers.queue.records import decode, peek
from workers.queue.scripts import reading, text, whole

if TYPE_CHECKING:
    import redis

# The maximum number of open predictions for one driver; any further ones are counted as `dropped`.
MOST_OPEN: Final = 20_000
MOST_NOTES: Final = 200
_LIFE_SECONDS: Final = 30 * 86_400
# Used in place of a driver's name for reconciles that belong to no driver.
SYSTEM: Final = "-"


class _Note(msgspec.Struct):
    """The fields of a recorded difference that are read."""

    at: float
    path: str
    verdict: str
    found: list[str]


class _Meta(msgspec.Struct):
    """The checked part of an object's metadata; readers must not rely on any other fields."""

    uid: str = ""


class _Item(msgspec.Struct):
    """An object of the Kubernetes API."""

    metadata: _Meta
    spec: dict[str, Any] = {}


class _Call(msgspec.Struct):
    """A driver call that led to a prediction."""

    method: str
    request: Any = None


class _Record(msgspec.Struct):
    """The fields of a prediction that are read."""

    base: _Item | None
    wanted: _Item | None
    calls: list[_Call]
    at: float


class Shadows:
    """The records of all shadows of one installation. Methods may raise QueueUnavailable."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._open = redis_key(client, "shadow_open")
        self._known = redis_key(client, "shadow_known")
        self._notes = redis_key(client, "shadow_notes")
        self._counts = redis_key(client, "shadow_counts")

    def put(self, driver: str, path: str, record: dict[str, Any]) -> None:
        """Store a prediction; the base of an open prediction for the same object is kept."""
        name = driver or SYSTEM
        with reading(self._client):
            known = self._client.hget(self._open + name, path)
            if known is not None:
                base = (decode(self._client, self._open + name, path, known) or record).get("base")
                is_same = base is None or _uid(base) == _uid(record["base"])
                record |= {"base": base} if is_same else {}
            elif int(self._client.hlen(self._open + name)) >= MOST_OPEN:
                self.count(name, "dropped")
                return
            pipe = self._client.pipeline(transaction=False)
            pipe.hset(self._open + name, path, json.dumps(record))
            pipe.expire(self._open + name, _LIFE_SECONDS)
            pipe.sadd(self._known + name, path)
            pipe.expire(self._known + name, _LIFE_SECONDS)
            pipe.execute()

    def find(self, driver: str, path: str) -> dict[str, Any] | None:
        """Return the open prediction for an object, if any."""
        key = self._open + (driver or SYSTEM)
        with reading(self._client):
            value = self._client.hget(key, path)
            return None if value is None else self._prediction(key, path, value)

    def open(self, driver: str) -> dict[str, dict[str, Any]]:
        """Return the predictions that have no verdict yet, by the object's path."""
        key, found = self._open + (driver or SYSTEM), {}
        with reading(self._client):
            for raw_path, value in self._client.hgetall(key).items():
                path = text(raw_path)
                record = self._prediction(key, path, value)
                if record is not None:
                    found[path] = record
        return found

    def _prediction(self, key: str, path: str, value: bytes | str) -> dict[str, Any] | None:
        record = decode(self._client, key, path, value)
        return record if record is not None and _fits(record, _Record) else None

    def is_known(self, driver: str, path: str) -> bool:
        """Return True if there has ever been a prediction for the object or a verdict on it."""
        with reading(self._client):
            return bool(self._client.sismember(self._known + (driver or SYSTEM), path))

    def close(self, driver: str, path: str, verdict: str, note: dict[str, Any] | None) -> bool:
        """Close a prediction with a verdict and its difference; return False if none was open."""
        name = driver or SYSTEM
        with reading(self._client):
            is_first = self._client.hdel(self._open + name, path)
        if is_first:
            self.tell(name, path, verdict, note)
        return bool(is_first)

    def tell(self, driver: str, path: str, verdict: str, note: dict[str, Any] | None) -> None:
        """Count a verdict on an object, and store the difference `note`, if there is one."""
        name = driver or SYSTEM
        self.count(name, verdict)
        with reading(self._client):
            pipe = self._client.pipeline(transaction=False)
            pipe.sadd(self._known + name, path)
            pipe.expire(self._known + name, _LIFE_SECONDS)
            if note is not None:
                pipe.lpush(
                    self._notes + name,
                    json.dumps({"path": path, "verdict": verdict, **note}),
                )
                pipe.ltrim(self._notes + name, 0, MOST_NOTES - 1)
                pipe.expire(self._notes + name, _LIFE_SECONDS)
            pipe.execute()

    def count(self, driver: str, verdict: str) -> None:
        """Add one to the count of a verdict."""
        with reading(self._client):
            pipe = self._client.pipeline(transaction=False)
            pipe.hincrby(self._counts + driver, verdict, 1)
            pipe.expire(self._counts + driver, _LIFE_SECONDS)
            pipe.execute()

    def report(self, driver: str) -> dict[str, Any]:
        """Return a driver's verdict counts, number of open predictions and last differences."""
        name = driver or SYSTEM
        with reading(self._client):
            counts = self._client.hgetall(self._counts + name)
            waiting = self._client.hlen(self._open + name)
            notes = self._client.lrange(self._notes + name, 0, MOST_NOTES - 1)
        return {
            "counts": {text(one): whole(value) or 0 for one, value in counts.items()},
            "open": int(waiting),
            "differences": [f for note in notes if (f := peek(note)) and _fits(f, _Note)],
        }

    def waiting(self, driver: str) -> list[dict[str, Any]]:
        """Return the oldest open predictions, each with the path of its object."""
        found = [{"path": path, **record} for path, record in self.open(driver).items()]
        return sorted(found, key=lambda one: (one["at"], one["path"]))[:MOST_NOTES]

    def drivers(self) -> list[str]:
        """Return the drivers with open predictions or counts."""
        names: set[str] = set()
        with reading(self._client):
            for family in (
                self._open,
                self._counts,
            ):
                found = self._client.scan_iter(match=f"{family}*", count=1000)
                names |= {text(name).removeprefix(family) for name in found}
        return sorted(names)


def _fits(record: dict[str, Any], shape: type[msgspec.Struct]) -> bool:
    try:
        msgspec.convert(record, shape)
    except msgspec.ValidationError:
        return False
    return True


def _uid(item: Any) -> str:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    return str(metadata.get("uid", "")) if isinstance(metadata, dict) else ""
