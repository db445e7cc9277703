"""Takes keys as the frame of reconciles does, for tests that choose a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.queue.keys import Key
from workers.queue.locks import Lock
from workers.queue.names import names_of

if TYPE_CHECKING:
    import redis

    from workers.queue.leases import Lease
    from workers.queue.workqueue import WorkQueue


def take(queue: WorkQueue, key: Key, *locks: Lock | str) -> Lease | None:
    """Take this key, even if it is not its turn; None if it may not be taken or a lock is busy.

    A lock that is given by its name is exclusive.
    """
    raw: Any = queue.scripts.client
    names = names_of(raw)
    first, retry = (names.full(family) + key.lane for family in ("ready", "retry"))
    if raw.zscore(first, key.text) is None and raw.zscore(retry, key.text) is None:
        return None
    raw.zadd(first, {key.text: "-inf"}, xx=True)
    raw.zadd(retry, {key.text: "-inf"}, xx=True)
    is_retry = raw.zscore(retry, key.text) is not None
    raw.hset(names.full("limits") + key.lane, "streak", 5 if is_retry else 0)
    lease = queue.take(key.driver, [key.kind])
    if lease is None:
        return None
    assert lease.key == key
    wanted = [Lock(lock) if isinstance(lock, str) else lock for lock in locks]
    return lease if queue.enter(lease, wanted) else None


def take_all(queue: WorkQueue, driver: str, *kinds: str) -> list[Lease]:
    """Take every key that may be taken now, in order, without locks."""
    leases = []
    while (lease := queue.take(driver, kinds)) is not None:
        assert queue.enter(lease, ())
        leases.append(lease)
    return leases


def due_keys(client: redis.Redis) -> list[Key]:
    """Return the keys that wait for their turn, lane by lane, first attempts before retries."""
    names = names_of(client)
    raw: Any = client
    lanes = sorted(raw.smembers(names.full("lanes")))
    return [
        Key.parse(member.decode())
        for lane in lanes
        for family in ("ready", "retry")
        for member in raw.zrange(names.full(family).encode() + lane, 0, -1)
    ]
