"""Compares the content of Redis with the model, key by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.queue.names import NAMES, USUAL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.queue_model import QueueModel


def scores(client: Any, family: str, lanes: Iterable[str]) -> dict[str, int]:
    """Return the scores of the members of a sorted set per lane, for all lanes together."""
    return {
        key.decode(): int(score)
        for lane in lanes
        for key, score in client.zrange(NAMES[family].full + lane, 0, -1, withscores=True)
    }


def read_hash(client: Any, name: str) -> dict[str, str]:
    """Return the fields of a hash as text."""
    return {
        field.decode(): value.decode() for field, value in client.hgetall(NAMES[name].full).items()
    }


def check(client: Any, model: QueueModel, lanes: Iterable[str]) -> None:
    """Assert that each key is exactly where the model expects it (I-2, I-3, I-4)."""
    first, retry = set(scores(client, "ready", lanes)), set(scores(client, "retry", lanes))
    assert first | retry == set(model.ready)
    assert not first & retry
    running = {
        key.decode() for lane in lanes for key, _ in client.zscan_iter(NAMES["leased"].full + lane)
    }
    assert scores(client, "leased", lanes) == {
        key: held.deadline for key, held in model.leases.items()
    }
    leases = read_hash(client, "leases")
    assert running == set(leases) == set(model.leases)
    assert {key: raw.split()[1] for key, raw in leases.items()} == {
        key: held.process for key, held in model.leases.items()
    }
    assert read_hash(client, "blocked") == {
        key: f"{mode}:{name}" for key, (name, mode) in model.blocked.items()
    }
    # A key that stayed here would be made ready, and reconciled again, forever.
    waiters = {raw.decode() for raw in client.zrange(NAMES["waiters"].full, 0, -1)}
    assert waiters == {f"{name}\0{key}" for key, (name, _) in model.blocked.items()}
    holders = {
        (name, member[1:], member[0])
        for name, _, member in (
            raw.decode().partition("\0") for raw in client.zrange(NAMES["holders"].full, 0, -1)
        )
    }
    assert holders == {
        (name, key, mode) for key, held in model.leases.items() for name, mode in held.locks.items()
    }
    assert {key: raw.split(" ")[4:] for key, raw in leases.items()} == {
        key: [f"{mode}:{name}" for name, mode in held.locks.items()]
        for key, held in model.leases.items()
    }
    by_name: dict[str, list[str]] = {}
    for name, _, mode in holders:
        by_name.setdefault(name, []).append(mode)
    assert all(len(held) == 1 or set(held) == {"s"} for held in by_name.values())
    marks = client.scan_iter(f"{NAMES['marks'].full}*")
    assert {key.decode() for one in marks for key in client.hkeys(one)} == set(model.marks)
    assert {key.decode() for key in client.smembers(NAMES["dirty"].full)} == model.dirty
    delayed = client.zrange(NAMES["delayed"].full, 0, -1, withscores=True)
    assert {key.decode(): int(due) for key, due in delayed} == model.delayed
    assert {key: int(count) for key, count in read_hash(client, "fails").items()} == model.fails
    waiting, since = set(model.ready) | set(model.blocked), set(read_hash(client, "since"))
    assert waiting <= since <= waiting | set(model.leases)


# What remains when nothing waits and nothing runs: settings, clocks, and keys that expire.
RESTING = {
    *("epoch", "procs", "fence", "limits", "declared", "paused", "pauses", "pauses_version"),
    *("saved", "seen", "ghosts"),
    *("quiet", "clock", "lost", "took", "turns", "woken"),
}
LEAVING = {"queue", "counters", "intents"}


def is_left(name: str) -> bool:
    """Return True if a Redis key of csi-fleet belongs to unfinished work (I-2 to I-5)."""
    entry = USUAL.declared(name)
    return entry is None or (entry.owner in LEAVING and entry.name not in RESTING)
