"""Reads the limits, pauses and counts of lanes.

Limits are global: every script that could start a key reads the same numbers in Redis. A lane
without declared limits admits no key. So if a driver has no workers, its keys wait in Redis, not in
Celery.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

from workers.queue.clock import Clock, read_clock
from workers.queue.keys import lane_name
from workers.queue.kinds import DRIVER_KINDS
from workers.queue.names import redis_key
from workers.queue.scripts import reading, text, whole

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import redis

PauseKind = Literal["driver", "lease"]
# The number of lanes that one pipeline reads.
_LANES_PER_READ: Final = 100

PAUSE_KINDS: Final[tuple[PauseKind, ...]] = ("driver", "lease")
OPERATOR: Final = "operator"


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """The limits of one lane.

    Args:
        concurrency: the maximum number of leases for all workers together.
        rate_per_second: the maximum number of keys admitted per second; 0 for no limit.
        burst: the size of the token bucket; at least 1 if there is a rate.
        total: the maximum number of running keys of all kinds that call the driver; 0 for no such
            limit.
        hold_seconds: how long a dead process's call may still run, for a driver that accepts
            only one call at a time.
    """

    concurrency: int
    rate_per_second: float = 0.0
    burst: int = 1
    total: int = 0
    hold_seconds: float = 0.0

    def args(self) -> tuple[float, ...]:
        """Return the limits as arguments for the script."""
        hold_ms = round(self.hold_seconds * 1000)
        return self.concurrency, self.rate_per_second, self.burst, self.total, hold_ms


@dataclass(frozen=True, slots=True)
class LaneStats:
    """The waiting and running keys of one lane, for the metrics and `status`.

    Args:
        ready: the number of waiting first attempts.
        retry: the number of waiting retries.
        running: the number of leased keys.
        delayed: the number of keys that are due later.
        head_age_seconds: how long the next key has been waiting.
        paused: the reason for each kind of pause; empty if the lane is not paused.
        paused_until: the end of each kind of pause, in seconds since 1970; a pause without an
            end has no entry.
        limits: the lane's limits; None if no worker has declared any, in which case no key is
            taken.
    """

    lane: str
    ready: int
    retry: int
    running: int
    head_age_seconds: float
    limits: LaneLimits | None
    delayed: int = 0
    blocked: int = 0
    paused: dict[str, str] = field(default_factory=dict)
    paused_until: dict[str, float] = field(default_factory=dict)

    @property
    def untaken_seconds(self) -> float:
        """How long the next key has been waiting although the lane's limits allow it to run.

        This is 0 if the limits do not allow it. It is also 0 for a lane with a rate or a shared
        limit on calls, because keys may have to wait there.
        """
        limits = self.limits
        if limits is None or self.paused or limits.rate_per_second or limits.total:
            return 0.0
        return self.head_age_seconds if self.running < limits.concurrency else 0.0


def _seconds_since(now_ms: int, then: bytes | str | float | None) -> float:
    since = then if isinstance(then, float) else whole(then)
    return 0.0 if since is None or math.isinf(since) else max(0.0, (now_ms - since) / 1000)


def _lane_of(key: bytes | str) -> str:
    return "|".join(text(key).split("|")[:2])


def _count_by_lane(members: Iterable[bytes | str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for member in members:
        lane = _lane_of(member)
        counts[lane] = counts.get(lane, 0) + 1
    return counts


def _paused(
    client: redis.Redis, lanes: Collection[str], clock: Clock
) -> dict[str, dict[str, tuple[str, float]]]:
    """Return the reason and end (see `read_pause`) of each pause, by lane and kind of pause."""
    pauses: dict[str, dict[str, tuple[str, float]]] = {}
    for name, value in client.hgetall(redis_key(client, "paused")).items():
        kind, _, lane = text(name).partition(" ")
        pause = read_pause(value, clock)
        if pause is not None:
            pauses.setdefault(lane, {})[kind] = pause
    for name, value in client.hgetall(redis_key(client, "pauses")).items():
        target, _, driver = text(name).partition(" ")
        pause = read_mirrored(value, clock)
        if pause is not None and target == "driver":
            for lane in {*lanes, *(lane_name(kind, driver) for kind in DRIVER_KINDS)}:
                if driver_of(lane) == driver:
                    pauses.setdefault(lane, {})[OPERATOR] = pause
    return pauses


def driver_of(lane: str) -> str:
    """Return a lane's driver name, without the `@node` that lanes of node deployment have."""
    return lane.partition("|")[2].partition("@")[0]


def read_pause(value: bytes | str | None, clock: Clock) -> tuple[str, float] | None:
    """Return the reason and end of a stored pause; None if it is over or unreadable.

    The end is in seconds since 1970, on the Redis host's clock; 0 for a pause without an end.
    """
    word, _, reason = text(value).partition(" ")
    until = whole(word)
    if until == 0:
        return reason, 0.0
    return (reason, clock.shown(until)) if until and until > clock.now_ms else None


def read_mirrored(value: bytes | str | None, clock: Clock) -> tuple[str, float] | None:
    """Return the reason and end of a mirrored pause, in the same form as `read_pause`.

    The stored string is `end_ms until_ms reason`; `end_ms` is the end.
    """
    end, _, said = text(value).partition(" ")
    return read_pause(f"{end} {said.partition(' ')[2]}", clock)


def read_limits(raw: list[bytes | None]) -> LaneLimits | None:
    """Return the limits from the fields concurrency, rate and burst; None if a field is missing."""
    try:
        concurrency, rate, burst = (float(value or "nan") for value in raw)
    except ValueError:
        return None
    if not math.isfinite(concurrency + rate + burst):
        return None
    return LaneLimits(int(concurrency), rate, int(burst))


def read_stats(client: redis.Redis, now_ms: int | None = None) -> dict[str, LaneStats]:
    """Return counts and ages for every lane with keys, limits or a pause, in a few round trips.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    with reading(client):
        clock = read_clock(client) if now_ms is None else Clock(now_ms, now_ms)
        declared: list[Any] = client.zrange(redis_key(client, "declared"), 0, -1)
        lanes = {text(lane) for lane in (*client.smembers(redis_key(client, "lanes")), *declared)}
        pauses = _paused(client, lanes, clock)
        delayed = _count_by_lane(
            key for key, _ in client.zscan_iter(redis_key(client, "delayed"), count=1000)
        )
        blocked = _count_by_lane(client.hkeys(redis_key(client, "blocked")))
        lanes |= pauses.keys() | delayed.keys() | blocked.keys()
        found: dict[str, LaneStats] = {}
        for chunk in chunks(sorted(lanes), _LANES_PER_READ):
            for stats in _lane_stats(client, chunk, clock.now_ms):
                lane = stats.lane
                held = pauses.get(lane, {})
                found[lane] = replace(
                    stats,
                    delayed=delayed.get(lane, 0),
                    blocked=blocked.get(lane, 0),
                    paused={kind: reason for kind, (reason, _) in held.items()},
                    paused_until={kind: end for kind, (_, end) in held.items() if end},
                )
        return found


def chunks(names: list[str], size: int) -> Iterable[list[str]]:
    """Split the names into pieces; each piece is read in one round trip."""
    return (names[start : start + size] for start in range(0, len(names), size))


def _lane_stats(client: redis.Redis, lanes: list[str], now_ms: int) -> list[LaneStats]:
    """Read several lanes in two round trips."""
    pipe = client.pipeline(transaction=False)
    for lane in lanes:
        for family in ("ready", "retry"):
            pipe.zcard(redis_key(client, family) + lane)
        pipe.zcard(redis_key(client, "leased") + lane)
        pipe.zrange(redis_key(client, "ready") + lane, 0, 0)
        pipe.zrange(redis_key(client, "retry") + lane, 0, 0)
        pipe.hmget(redis_key(client, "limits") + lane, "concurrency", "rate", "burst")
    answers = iter(pipe.execute())
    rows = [(lane, *islice(answers, 6)) for lane in lanes]
    heads = {row[0]: (row[4] or row[5])[0] for row in rows if row[4] or row[5]}
    waits = client.hmget(redis_key(client, "since"), list(heads.values())) if heads else []
    since = dict(zip(heads, waits, strict=True))
    return [
        LaneStats(
            lane=lane,
            ready=ready,
            retry=retry,
            running=running,
            head_age_seconds=_seconds_since(now_ms, since.get(lane)),
            limits=read_limits(limits),
        )
        for lane, ready, retry, running, _, _, limits in rows
    ]
