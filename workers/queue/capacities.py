"""Stores a driver's CSIStorageCapacity objects in Redis, so that no worker has to watch them.

After each create and update, the API server's response is stored at once (CAP-041). Each plan
replaces all stored objects. If Redis loses the data, `noticed` returns None, the items wait, and
the next plan lists the objects again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.queue.names import redis_key
from workers.queue.records import decode, encode, peek, quarantine
from workers.queue.scripts import Scripts, reading, text, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import redis

    from workers.queue.keys import Key

# The number of fields per command; together, they are a few hundred KiB in size.
_BATCH: Final = 250


class CapacityStore:
    """A store of each driver's known objects, keyed by the string form of their item.

    Methods may raise QueueUnavailable.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._planned = redis_key(client, "capacity_planned")
        self._objects = redis_key(client, "capacity")
        self._items = redis_key(client, "capacity_uids")
        self._obsolete = redis_key(client, "capacity_obsolete")
        self._delayed = redis_key(client, "delayed")
        self._fails = redis_key(client, "fails")
        self._scripts = Scripts(client)

    def turn(self, driver: str, *, qps: float, burst: int) -> float:
        """Reserve the driver's next write; return the seconds to wait before it (CAP-071).

        All processes share one token bucket: it allows `burst` writes at first, then `qps` writes
        per second.
        """
        return int(self._scripts.run("turn", driver, 1000 / qps, max(1, burst))) / 1000

    def known(self, driver: str, item: str) -> tuple[bool, dict[str, Any] | None]:
        """Return whether a plan is stored, and the known object of the item or None.

        After Redis has lost its data, no plan is stored until the next one is made.
        """
        with reading(self._client):
            pipe = self._client.pipeline(transaction=False)
            pipe.exists(self._planned + driver)
            pipe.hget(self._objects + driver, item)
            is_planned, raw = pipe.execute()
            return bool(is_planned), self._decode(driver, item, raw)

    def all(self, driver: str) -> dict[str, dict[str, Any]]:
        """Return every known object of the driver, by item."""
        with reading(self._client):
            found = {}
            for field, raw in self._client.hscan_iter(self._objects + driver, count=200):
                record = self._decode(driver, text(field), raw)
                if record is not None:
                    found[text(field)] = record
            return found

    def put(self, driver: str, objects: Mapping[str, Mapping[str, Any]]) -> None:
        """Store the objects of the given items."""
        entries = list(objects.items())
        for start in range(0, len(entries), _BATCH):
            batch = entries[start : start + _BATCH]
            uids: Any = {one["metadata"]["uid"]: item for item, one in batch}
            with reading(self._client):
                pipe = self._client.pipeline(transaction=True)
                pipe.hset(
                    self._objects + driver,
                    mapping={item: encode(one) for item, one in batch},
                )
                pipe.hset(self._items + driver, mapping=uids)
                pipe.execute()

    def drop(self, driver: str, objects: Mapping[str, Mapping[str, Any]]) -> None:
        """Forget deleted objects, but keep objects that have replaced them."""
        current = self._current(driver, list(objects))
        gone = [item for item, one in objects.items() if _uid(current.get(item)) in {"", _uid(one)}]
        uids = [_uid(one) for one in objects.values()]
        with reading(self._client):
            pipe = self._client.pipeline(transaction=True)
            if gone:
                pipe.hdel(self._objects + driver, *gone)
            if uids:
                pipe.hdel(self._items + driver, *uids)
            pipe.execute()

    def item_of(self, driver: str, uid: str) -> str | None:
        """Return the item that an object is assigned to; None if there is none."""
        with reading(self._client):
            raw = self._client.hget(self._items + driver, uid)
        if raw is None:
            return None
        item = text(raw)
        return item if _uid(self._current(driver, [item]).get(item)) == uid else None

    def replace(
        self,
        driver: str,
        before: Mapping[str, Mapping[str, Any]],
        assigned: Mapping[str, Mapping[str, Any]],
        obsolete: Mapping[str, str],
    ) -> None:
        """Store a plan; keep objects that workers stored after the plan's LIST request began.

        Args:
            driver: the driver's queue name.
            before: the result of `all`, read before the LIST request.
            assigned: maps each item to its object from the LIST response.
            obsolete: maps the name of each object to be deleted to its uid.
        """
        current = self._current(driver, list(assigned))
        self.put(
            driver,
            {
                item: one
                for item, one in assigned.items()
                if not _is_newer(current.get(item), one, before.get(item))
            },
        )
        left = {item: one for item, one in before.items() if _uid(one) != _uid(assigned.get(item))}
        self.drop(driver, left)
        with reading(self._client):
            pipe = self._client.pipeline(transaction=True)
            pipe.delete(self._obsolete + driver)
            if obsolete:
                fields: Any = dict(obsolete)
                pipe.hset(self._obsolete + driver, mapping=fields)
            pipe.execute()

    def obsolete_uid(self, driver: str, name: str) -> str | None:
        """Return the uid of an obsolete object; None if no object of that name is obsolete."""
        with reading(self._client):
            raw = self._client.hget(self._obsolete + driver, name)
        return None if raw is None else text(raw)

    def deleted(self, driver: str, name: str) -> None:
        """Forget an obsolete object, because it was deleted or is no longer obsolete."""
        with reading(self._client):
            self._client.hdel(self._obsolete + driver, name)

    def counts(self, driver: str) -> tuple[int, int]:
        """Return how many items have an object, and how many objects are obsolete (CAP-080)."""
        with reading(self._client):
            pipe = self._client.pipeline(transaction=False)
            pipe.hlen(self._objects + driver)
            pipe.hlen(self._obsolete + driver)
            objects, obsolete = pipe.execute()
        return int(objects), int(obsolete)

    def noticed(self, driver: str) -> dict[str, Any] | None:
        """Return the input of the last plan; None if no plan is stored."""
        with reading(self._client):
            raw = self._client.get(self._planned + driver)
        return None if raw is None else peek(raw)

    def notice(self, driver: str, record: Mapping[str, Any]) -> None:
        """Store the input of a plan."""
        with reading(self._client):
            self._client.set(self._planned + driver, encode(record))

    def postponed(self, keys: Sequence[Key]) -> set[Key]:
        """Return the keys among `keys` that are waiting for a retry or a delayed refresh.

        A poll must not add these keys.
        """
        return self._having(keys, lambda pipe, texts: pipe.zmscore(self._delayed, texts))

    def failing(self, keys: Sequence[Key]) -> set[Key]:
        """Return the keys among `keys` that are in back-off, which no refresh shortens (S-008)."""
        return self._having(keys, lambda pipe, texts: pipe.hmget(self._fails, texts))

    def _having(self, keys: Sequence[Key], ask: Any) -> set[Key]:
        found: set[Key] = set()
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            with reading(self._client):
                answers = ask(self._client, [key.text for key in batch])
            found.update(key for key, one in zip(batch, answers, strict=True) if one is not None)
        return found

    def _current(self, driver: str, items: Iterable[str]) -> dict[str, dict[str, Any]]:
        wanted, found = list(items), {}
        for start in range(0, len(wanted), _BATCH):
            batch = wanted[start : start + _BATCH]
            with reading(self._client):
                answers = self._client.hmget(self._objects + driver, batch)
                for item, raw in zip(batch, answers, strict=True):
                    record = self._decode(driver, item, raw)
                    if record is not None:
                        found[item] = record
        return found

    def _decode(self, driver: str, item: str, raw: bytes | str | None) -> dict[str, Any] | None:
        key = self._objects + driver
        found = None if raw is None else decode(self._client, key, item, raw)
        if raw is not None and found is not None and not isinstance(found.get("metadata"), dict):
            quarantine(self._client, key, item, raw)
            return None
        return found


def _uid(one: Mapping[str, Any] | None) -> str:
    return "" if one is None else str(one["metadata"].get("uid", ""))


def _is_newer(
    known: Mapping[str, Any] | None, listed: Mapping[str, Any], before: Mapping[str, Any] | None
) -> bool:
    """Return True if the known object was stored after the LIST, by comparing versions.

    The result is False for an object that was known before the LIST even if its version is higher
    than the listed one: in that case, etcd has been restored from a backup.
    """
    if known is None or known == before:
        return False
    if _uid(known) != _uid(listed):
        # The plan has chosen between these two objects, unless the known object was stored after
        # the plan's LIST.
        return _uid(known) != _uid(before)
    versions = [whole(one["metadata"].get("resourceVersion")) for one in (known, listed)]
    return None not in versions and (versions[0] or 0) >= (versions[1] or 0)
