"""Reads counts and the state of keys from Redis; writes only to quarantine broken records.

Used by `explain`, `status` and the metrics. It needs only a few round trips however many keys there
are (it reads ranks instead of scanning), so reading stays cheap even while ten thousand claims are
waiting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from workers.queue.clock import Clock, ask_clock, clock_of, read_clock
from workers.queue.keys import Key
from workers.queue.limits import (
    OPERATOR,
    PAUSE_KINDS,
    LaneLimits,
    chunks,
    driver_of,
    read_limits,
    read_mirrored,
    read_pause,
)
from workers.queue.names import driver_key, literal, redis_key
from workers.queue.records import allowed, decode, drivers_with, peek
from workers.queue.scripts import reading, text, whole
from workers.queue.seal import content

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import redis

# The year 3000: the latest time that is shown, because a broken score may be any number.
_LATEST_MS = 32_503_680_000_000.0
_KEYS_PER_READ = 200


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a lane: its reason, and the time at which it ends.

    `until` is in seconds since 1970; 0 means that the pause has no end.
    """

    kind: str
    reason: str
    until: float


@dataclass(frozen=True, slots=True)
class Note:
    """One note in a key's history; `at` is in seconds since 1970."""

    at: float
    event: str
    detail: str


@dataclass(frozen=True, slots=True)
class KeyState:
    """Everything in Redis about one key. Times are in seconds since 1970; 0 means none.

    Attributes:
        now: the current time; like all times here, it is on the Redis host's clock.
        position: the key's rank in its waiting order (first attempts or retries), from 1; 0 if it
            is not waiting.
        waiting: the number of keys in the same waiting order.
        is_retry: True if the key is waiting among the retries.
        lease: (process, start) while a worker is working on the key.
        blocked_by: a key that holds the lock that this key is waiting for, or the lock's name.
        due: the time of the key's next attempt.
        in_use: the number of leases in the key's lane, plus dead processes' calls that may still be
            running.
        limits: the limits of the lane; None if no worker has declared any.
    """

    key: Key
    now: float
    position: int = 0
    waiting: int = 0
    is_retry: bool = False
    since: float = 0.0
    lease: tuple[str, float] | None = None
    is_dirty: bool = False
    blocked_by: str = ""
    due: float = 0.0
    fails: int = 0
    memo: str = ""
    abandoned_at: float = 0.0
    in_use: int = 0
    limits: LaneLimits | None = None
    pauses: tuple[Pause, ...] = ()
    intent: dict[str, Any] | None = None
    unsaved: dict[str, Any] | None = None
    trail: tuple[Note, ...] = ()

    @property
    def is_known(self) -> bool:
        """True if the key is waiting, is running or has a scheduled retry."""
        return bool(self.position or self.lease or self.blocked_by or self.due)


class KnownKeys:
    """The states of many keys, read together; `read_key` accepts this instead of a client.

    A caller with thousands of objects requests their states twice. The first round records the keys
    and returns empty states, `load` reads all these keys, and the second round returns the states.

    Args:
        client: the Redis client to read from.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._wanted: dict[Key, None] = {}
        self._states: dict[Key, KeyState] = {}

    def state(self, key: Key) -> KeyState:
        """Return the state of a key; the state is empty until `load` has read it."""
        if (found := self._states.get(key)) is not None:
            return found
        self._wanted[key] = None
        return KeyState(key, 0.0)

    def load(self) -> None:
        """Read the states of all keys for which `state` was called.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        wanted = list(self._wanted)
        for start in range(0, len(wanted), _KEYS_PER_READ):
            part = wanted[start : start + _KEYS_PER_READ]
            self._states |= zip(part, read_keys(self._client, part), strict=True)
        self._wanted.clear()


def read_key(client: redis.Redis | KnownKeys, key: Key) -> KeyState:
    """Read one key's state in at most two round trips, however many keys are waiting.

    Args:
        client: a Redis client, or `KnownKeys`.
        key: the key to read, of any kind.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    if isinstance(client, KnownKeys):
        return client.state(key)
    return read_keys(client, [key])[0]


def read_keys(client: redis.Redis, wanted: list[Key]) -> list[KeyState]:
    """Read several keys' states in one round trip, plus one per lock that they are waiting for.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    names = [key.text for key in wanted]
    lanes = list(dict.fromkeys(key.lane for key in wanted))
    hashes = ("leases", "news", "blocked", "since", "fails")
    with reading(client):
        pipe = client.pipeline(transaction=False)
        ask_clock(client, pipe)
        for lane in lanes:
            for family in ("ready", "retry", "leased", "ghosts"):
                pipe.zcard(redis_key(client, family) + lane)
            pipe.hmget(redis_key(client, "limits") + lane, "concurrency", "rate", "burst")
            pipe.hmget(redis_key(client, "paused"), [f"{kind} {lane}" for kind in PAUSE_KINDS])
            pipe.hget(redis_key(client, "pauses"), f"driver {driver_of(lane)}")
        for entry in hashes:
            pipe.hmget(redis_key(client, entry), names)
        for key in wanted:
            for entry, name in _records(key).items():
                pipe.hget(driver_key(client, entry, key.driver), name)
            for family in ("ready", "retry"):
                pipe.zrank(redis_key(client, family) + key.lane, key.text)
            pipe.sismember(redis_key(client, "dirty"), key.text)
            for entry in ("delayed", "abandoned"):
                pipe.zscore(redis_key(client, entry), key.text)
            pipe.lrange(redis_key(client, "trail") + trail_name(key), 0, -1)
        answers = iter(allowed(pipe))
        clock = clock_of(*islice(answers, 2))
        shared = {lane: tuple(islice(answers, 7)) for lane in lanes}
        columns = list(islice(answers, len(hashes)))
        rows = [(*column, *islice(answers, 9)) for column in zip(*columns, strict=True)]
        locks = {text(row[2]) for row in rows if row[2]}
        holders = {lock: _holder(client, lock) for lock in locks}
        records = [
            [
                decode(client, driver_key(client, entry, key.driver), key.record_name, raw)
                if raw
                else None
                for entry, raw in (("intents", row[6]), ("unsaved", row[7]))
            ]
            for key, row in zip(wanted, rows, strict=True)
        ]
    return [
        _state_of(key, clock, shared[key.lane], (*row[:6], *record, *row[8:]), holders)
        for key, row, record in zip(wanted, rows, records, strict=True)
    ]


def _records(key: Key) -> dict[str, str]:
    """Return the families that can have a record for this key, with the record's hash field."""
    return {"memos": key.text, "intents": key.record_name, "unsaved": key.record_name}


def _state_of(
    key: Key,
    clock: Clock,
    shared: tuple[Any, ...],
    row: tuple[Any, ...],
    holders: dict[str, str],
) -> KeyState:
    """Build one key's state from the replies for its lane and for the key itself."""
    ready_count, retry_count, running, ghosts, limits, pauses, operators = shared
    lease, news, blocked, since, fails, memo, intent, unsaved = row[:8]
    ready, retry, dirty, due, abandoned, notes = row[8:]
    rank = ready if ready is not None else retry
    return KeyState(
        key=key,
        now=clock.shown_now,
        position=0 if rank is None else rank + 1,
        waiting=ready_count if ready is not None else retry_count,
        is_retry=ready is None and retry is not None,
        since=_shown(clock, since),
        lease=_lease(clock, text(lease)) if lease else None,
        is_dirty=bool(dirty) or news is not None,
        blocked_by=holders[text(blocked)] if blocked else "",
        due=_shown(clock, due),
        fails=whole(fails) or 0,
        memo=text(content(memo)) if memo else "",
        abandoned_at=_shown(clock, abandoned),
        in_use=running + ghosts,
        limits=read_limits(limits),
        pauses=tuple(_pauses(clock, operators, pauses)),
        intent=intent,
        unsaved=unsaved,
        trail=tuple(map(read_note, notes)),
    )


def _holder(client: redis.Redis, lock: str) -> str:
    """Return one of the keys that hold a lock; the lock's name if no key holds it."""
    name = lock.partition(":")[2]
    found = client.zrangebylex(redis_key(client, "holders"), f"[{name}\0", f"({name}\1", 0, 1)
    return text(found[0])[len(name) + 2 :] if found else name


def waiting_keys(client: redis.Redis, lane: str, start: int, count: int) -> list[Key]:
    """Return the keys that are waiting in a lane: first attempts, then retries, in queue order.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    with reading(client):
        pipe = client.pipeline(transaction=False)
        for family in ("ready", "retry"):
            pipe.zrange(redis_key(client, family) + lane, start, start + count - 1)
        names = [text(name) for part in pipe.execute() for name in part]
    return [key for name in names[:count] if (key := _parse(name)) is not None]


@dataclass(frozen=True, slots=True)
class FailedKey:
    """A key whose last attempt failed, or that has reached its retry limit."""

    key: Key
    fails: int
    due: float
    abandoned_at: float
    error: str
    infeasible: bool = field(default=False)


def failed_keys(client: redis.Redis, *, limit: int = 10_000) -> list[FailedKey]:
    """Return the keys that failed or are at their retry limit; most failures first.

    The keys are read in batches.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    with reading(client):
        names: dict[str, int] = {}
        for name, fails in client.hscan_iter(redis_key(client, "fails"), count=1000):
            names[text(name)] = whole(fails) or 0
        for name, _ in client.zscan_iter(redis_key(client, "abandoned"), count=1000):
            names.setdefault(text(name), 0)
        chosen = sorted(names, key=lambda name: (-names[name], name))[:limit]
        found: list[FailedKey] = []
        clock = read_clock(client)
        for chunk in chunks(chosen, 200):
            found += _read_failed(client, clock, chunk, names)
        return found


def failing_counts(client: redis.Redis) -> dict[str, int]:
    """Count the keys that are failing or at their retry limit, by the driver part of the key.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    with reading(client):
        fails = client.hscan_iter(redis_key(client, "fails"), count=1000)
        abandoned = client.zscan_iter(redis_key(client, "abandoned"), count=1000)
        names = {text(name) for found in (fails, abandoned) for name, _ in found}
    counts: dict[str, int] = {}
    for name in names:
        if (key := _parse(name)) is not None:
            counts[key.driver] = counts.get(key.driver, 0) + 1
    return counts


def _read_failed(
    client: redis.Redis, clock: Clock, chunk: list[str], fails: dict[str, int]
) -> Iterator[FailedKey]:
    keys = [key for name in chunk if (key := _parse(name)) is not None]
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.zscore(redis_key(client, "delayed"), key.text)
        pipe.zscore(redis_key(client, "abandoned"), key.text)
        pipe.hget(driver_key(client, "memos", key.driver), key.text)
        pipe.lrange(redis_key(client, "trail") + trail_name(key), -20, -1)
    answers = iter(allowed(pipe))
    for key in keys:
        due, abandoned, memo, notes = islice(answers, 4)
        errors = [note.detail for note in map(read_note, notes) if note.event == "error"]
        yield FailedKey(
            key=key,
            fails=fails.get(key.text, 0),
            due=_shown(clock, due),
            abandoned_at=_shown(clock, abandoned),
            error=errors[-1] if errors else "",
            infeasible="slow_until" in text(memo),
        )


def keys_of_object(client: redis.Redis, kinds: Collection[str], object_: str) -> list[Key]:
    """Return the keys of an object, found by the object's name.

    These are the keys that are waiting, running or failing, or that have a history. The history of
    a finished key does not contain the driver, so the returned key has an empty driver. Use this
    for a deleted object whose uid is unknown. This function scans the lists of all keys, in
    batches.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    pattern = f"*{literal(object_)}|*"
    found: dict[Key, None] = {}
    with reading(client):
        for entry in ("leases", "since", "blocked", "fails"):
            for name, _ in client.hscan_iter(redis_key(client, entry), pattern, count=1000):
                found |= _about(text(name), kinds, object_)
        for entry in ("delayed", "abandoned"):
            for name, _ in client.zscan_iter(redis_key(client, entry), pattern, count=1000):
                found |= _about(text(name), kinds, object_)
        known = {trail_name(key) for key in found}
        prefix = redis_key(client, "trail")
        for raw in client.scan_iter(f"{literal(prefix)}{pattern}", count=1000):
            kind, *rest = text(raw).removeprefix(prefix).split("|")
            if text(raw).removeprefix(prefix) not in known:
                found |= _about("|".join([kind, "", *rest]), kinds, object_)
    return list(found)


def _about(name: str, kinds: Collection[str], object_: str) -> dict[Key, None]:
    """Return the parsed key if it belongs to the object, with or without a namespace."""
    key = _parse(name)
    if key is None or key.kind not in kinds:
        return {}
    is_meant = key.object == object_ or ("/" not in object_ and key.object.endswith(f"/{object_}"))
    return {key: None} if is_meant else {}


def read_sizes(client: redis.Redis) -> dict[str, int]:
    """Return the counts that belong to no lane, for the metrics and `status`."""
    with reading(client):
        # Workers remove dead processes from this list, so it is not cleaned up while no worker is
        # running.
        now = read_clock(client).now_ms
        pipe = client.pipeline(transaction=False)
        pipe.hlen(redis_key(client, "fails"))
        pipe.zcard(redis_key(client, "abandoned"))
        pipe.zcount(redis_key(client, "procs"), now, "+inf")
        pipe.zcount(redis_key(client, "drivers_until"), now, "+inf")
        pipe.hlen(redis_key(client, "quarantine"))
        answers = pipe.execute()
        records = [_count(client, name) for name in ("intents", "unsaved")]
    names = (
        "intents",
        "unsaved_volumes",
        "failing_keys",
        "abandoned_keys",
        "worker_processes",
        "registered_drivers",
        "quarantined_records",
    )
    return dict(zip(names, (*records, *answers), strict=True))


def _count(client: redis.Redis, name: str) -> int:
    """Count the records of a family for all drivers together."""
    pipe = client.pipeline(transaction=False)
    for driver in drivers_with(client, name):
        pipe.hlen(driver_key(client, name, driver))
    return sum(pipe.execute())


def trail_name(key: Key) -> str:
    """Return the name of a key's history in the trail family, as `lib.lua` builds it."""
    kind, _, object_, uid = key.text.split("|")
    return f"{kind}|{object_}|{uid}"


def read_note(raw: bytes) -> Note:
    """Parse one note of a history."""
    at, _, rest = text(raw).partition(" ")
    event, _, detail = rest.partition(" ")
    return Note(_seconds(at), event, detail)


def _parse(name: str) -> Key | None:
    try:
        return Key.parse(name)
    except ValueError:
        return None


def _seconds(milliseconds: bytes | str | float | None) -> float:
    if isinstance(milliseconds, float):  # a score can be any number
        return min(max(milliseconds, 0.0), _LATEST_MS) / 1000
    return (whole(milliseconds) or 0) / 1000


def _shown(clock: Clock, stamp_ms: bytes | str | float | None) -> float:
    """Convert a time on the queue's clock to the Redis host's clock; 0 if there is no time."""
    seconds = _seconds(stamp_ms)
    return clock.shown(seconds * 1000) if seconds else 0.0


def _lease(clock: Clock, raw: str) -> tuple[str, float]:
    _, process, _, started, *_ = [*raw.split(" ", 4), "", "", "0", ""]
    return process, _shown(clock, started)


def _pauses(clock: Clock, mirrored: bytes | None, values: list[bytes | None]) -> Iterator[Pause]:
    found = [read_mirrored(mirrored, clock), *(read_pause(value, clock) for value in values)]
    for kind, pause in zip((OPERATOR, *PAUSE_KINDS), found, strict=True):
        if pause is not None:
            yield Pause(kind, *pause)


def memory_ratio(facts: Mapping[str, Any]) -> float | None:
    """Return the used fraction of `maxmemory`, from the INFO reply; None if no limit is set."""
    used, uncounted, most = (
        whole(str(facts.get(name))) or 0
        for name in ("used_memory", "mem_not_counted_for_evict", "maxmemory")
    )
    return (used - uncounted) / most if most else None


def read_memory(client: redis.Redis) -> dict[str, float]:
    """Return `redis_memory_ratio` for the metrics; empty if Redis has no memory limit."""
    with reading(client):
        facts: Any = client.info("memory")
    ratio = memory_ratio(facts) if isinstance(facts, dict) else None
    return {} if ratio is None else {"redis_memory_ratio": ratio}


def read_redis(client: redis.Redis) -> dict[str, str]:
    """Return the state and settings in Redis's INFO reply; "?" means that a value is missing."""
    with reading(client):
        facts: dict[str, Any] = client.info()
    ratio = memory_ratio(facts)
    return {
        "version": str(facts.get("redis_version", "?")),
        "memory": str(facts.get("used_memory_human", "?")),
        "memory_limit": str(facts.get("maxmemory_human", "?")),
        "memory_percent": "?" if ratio is None else str(int(100 * ratio)),
        "policy": str(facts.get("maxmemory_policy", "?")),
        "clients": str(facts.get("connected_clients", "?")),
        "appendonly": "yes" if facts.get("aof_enabled") else "no",
        "last_save": str(facts.get("rdb_last_bgsave_status", "?")),
        "role": str(facts.get("role", "?")),
        "evicted": str(facts.get("evicted_keys", "?")),
    }


def read_life(client: redis.Redis) -> tuple[str, str]:
    """Return Redis's epoch and run id; they change when Redis loses data. Writes nothing."""
    with reading(client):
        epoch = client.get(redis_key(client, "epoch"))
        facts: dict[str, Any] = client.info("server")
    return text(epoch), str(facts.get("run_id", ""))


def read_age(client: redis.Redis) -> float:
    """Return the seconds since Redis started or lost data; earlier announcements are gone."""
    epoch, run = read_life(client)
    _, birth, of_run = [*epoch.split(":"), "", ""][:3]
    born_ms = whole(birth)
    if born_ms is not None and of_run == run:
        return max(0.0, (read_clock(client).now_ms - born_ms) / 1000)
    with reading(client):  # no process has read the epoch since Redis started
        facts: dict[str, Any] = client.info("server")
    return float(whole(str(facts.get("uptime_in_seconds"))) or 0)


def marks_of_driver(
    client: redis.Redis, kinds: Iterable[str], driver: str
) -> dict[str, dict[str, Any]]:
    """Return the marks of a driver's keys of these kinds, by key; signatures are not checked.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    prefixes = tuple(f"{kind}|{driver}|" for kind in kinds)
    name = driver_key(client, "marks", driver)
    with reading(client):
        return {
            key: peek(raw) or {}
            for key, raw in ((text(k), v) for k, v in client.hscan_iter(name, count=1000))
            if key.startswith(prefixes)
        }
