"""Declares csi-fleet's keys in Redis, with their type, owner and lifetime.

This file is the only declaration. `lua/lib.lua` gets the key names from here, the code that repairs
keys of the wrong type gets the types from here, and a test fails if Redis contains a key that is
not declared. `Names` contains the key names of one cluster, and is attached to the client for that
cluster's Redis.

All data can be lost at any moment: the API server is the source of truth, and the watcher adds
every object that may need a reconcile again. Only `intents`, `unsaved` and some `marks` contain
data that the API server does not have (M-010, M-011).

A record that can cause an effect is stored in a key named after its driver (`driver_key`). So the
Redis ACL keeps a worker in one driver's pod away from all other drivers' records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from workers.queue.keys import spelled

if TYPE_CHECKING:
    import redis

PREFIX: Final = "csifleet:"
# The characters that have a special meaning in Redis's patterns.
_GLOB: Final = re.compile(r"[*?\[\]\\^]")
CELERY_QUEUE_PREFIX: Final = "drv."

# Families whose keys did not contain the driver's name in the previous release
# (`formerrecords.py`).
FORMER: Final = frozenset({"intents", "marks", "memos", "unsaved"})

RedisType = Literal["string", "hash", "set", "zset", "list"]
Owner = Literal[
    "queue",
    "counters",
    "intents",
    "catalog",
    "registry",
    "capacity",
    "periods",
    "events",
    "shadow",
    "quarantine",
]


@dataclass(frozen=True, slots=True)
class RedisName:
    """One declared key, or a family of keys if `is_family` is set; the name is then a prefix.

    Args:
        type: the Redis type.
        owner: the part of csi-fleet that the key belongs to. On a repair, all `queue` keys are
            dropped together, and are then rebuilt from the API server.
        life: what the key contains, and when it is removed.
        by_driver: True if the prefix is followed by the driver part of a key (`Key.driver`),
            including the node. A worker in a driver's pod can access only that driver's keys.
    """

    name: str
    type: RedisType
    owner: Owner
    life: str
    is_family: bool = False
    by_driver: bool = False

    @property
    def full(self) -> str:
        """The key in the default cluster, or the prefix of the family's keys."""
        return USUAL.full(self.name)


def _family(name: str, type_: RedisType, owner: Owner, life: str) -> RedisName:
    return RedisName(name, type_, owner, life, is_family=True)


def _by_driver(name: str, type_: RedisType, owner: Owner, life: str) -> RedisName:
    return RedisName(name, type_, owner, life, is_family=True, by_driver=True)


NAMES: Final = {
    entry.name: entry
    for entry in (
        # Queue: which process is working on which key. These keys are dropped and rebuilt as a
        # whole.
        RedisName("epoch", "string", "queue", "'random:birth_ms:run_id'; changed = may lack data"),
        RedisName("quiet", "string", "queue", "ms until which a new life admits nothing"),
        RedisName("procs", "zset", "queue", "process id -> deadline ms; for people"),
        RedisName("leases", "hash", "queue", "key -> 'fence process token started_ms lock...'"),
        RedisName("holders", "zset", "queue", "'lock NUL mode key', score 0; read by lex range"),
        RedisName("blocked", "hash", "queue", "key -> busy lock it waits for, 'mode:name'"),
        RedisName("waiters", "zset", "queue", "'lock NUL key', score 0; read by lex range"),
        RedisName("dirty", "set", "queue", "keys added while running; emptied at release"),
        RedisName("news", "hash", "queue", "running key -> version of an event; until its release"),
        _family("seen", "hash", "queue", "minute: key -> version of its newest event; 3 min"),
        RedisName("delayed", "zset", "queue", "key -> due ms; removed when due or taken"),
        RedisName("since", "hash", "queue", "waiting key -> ms of its first add; until taken"),
        RedisName("lanes", "set", "queue", "lanes with ready or running keys"),
        _family("ready", "zset", "queue", "lane: first attempts, score = virtual time"),
        _family("retry", "zset", "queue", "lane: retries, score = virtual time"),
        _family("ticketed", "zset", "queue", "lane: of the release before; the sweep empties it"),
        _family("woken", "string", "queue", "Celery list: until when a message is on its way; PX"),
        # Driver or list -> number of the kind that was taken last. Lane -> 'since hold': a call of
        # its driver is kept for the lane, since when and for how long, in ms; since = 0: not yet.
        RedisName("turns", "hash", "queue", "whose turn it is, by driver, list and lane"),
        _family("leased", "zset", "queue", "lane: leased key -> ms its lease runs out"),
        RedisName("lost", "zset", "queue", "token of a lease that was taken back -> ms; 10 min"),
        _family("took", "string", "queue", "token: key that a take led to; 1 min"),
        _family("ghosts", "zset", "queue", "lane: key a process died with -> ms its call ends"),
        _family("share", "hash", "queue", "lane: virtual times of tenants; gone when idle"),
        _family("share_retry", "hash", "queue", "lane: the same for retries"),
        RedisName("tight", "string", "queue", "ms until which Redis has little room: no trails"),
        # Counters and settings: a repair keeps these keys.
        RedisName("clock", "string", "counters", "'ms difference': the queue's clock (lib.lua)"),
        RedisName("fence", "string", "counters", "last fence number; never removed"),
        RedisName("fails", "hash", "counters", "key -> consecutive failures; until done/forget"),
        _by_driver(
            "memos", "hash", "counters", "key -> memo of its last failure; as `fails`, 7 days"
        ),
        _by_driver("marks", "hash", "counters", "key -> a controller's record; until forget"),
        RedisName("abandoned", "zset", "counters", "given-up key -> ms; dropped after 7 days"),
        RedisName("paused", "hash", "counters", "'kind lane' -> 'until_ms reason'; until resumed"),
        RedisName("pauses", "hash", "counters", "'driver|class NAME' -> 'end_ms until_ms reason'"),
        RedisName("pauses_version", "string", "counters", "version that `pauses` mirrors; 1 min"),
        _family("limits", "hash", "counters", "lane: concurrency, rate, burst, bucket; by workers"),
        RedisName("declared", "zset", "counters", "lane -> ms its limits were last declared; 1 h"),
        # Intents: volumes that may exist in a storage system without a PV.
        _by_driver("intents", "hash", "intents", "domain -> record; from before CreateVolume"),
        _by_driver("unsaved", "hash", "intents", "domain -> full PV; until saved"),
        RedisName("held", "hash", "intents", "namespace -> bytes of its intents; recounted"),
        _by_driver("saved", "string", "intents", "then '|domain': the PV was just saved; 10 min"),
        # Catalog: these keys are written by the watcher.
        _family("catalog", "hash", "catalog", "kind: name -> 'rv json', no json = tombstone"),
        _family("changes", "zset", "catalog", "kind: name -> version of its last change"),
        RedisName("versions", "hash", "catalog", "kind -> last version, grows within an epoch"),
        RedisName("floors", "hash", "catalog", "kind -> version below which readers reload"),
        RedisName("complete", "hash", "catalog", "kind -> epoch in which it was filled"),
        RedisName("fresh", "hash", "catalog", "kind -> ms until which its watch is trusted"),
        # Registry: these keys are written by workers.
        RedisName("drivers", "hash", "registry", "driver -> record json; dropped when expired"),
        RedisName("drivers_until", "zset", "registry", "driver -> ms until it counts as served"),
        _by_driver("links", "zset", "registry", "process connected to it -> ms; PX"),
        _by_driver("chosen", "string", "registry", "'begin_ms calls_ms address' (link.lua)"),
        RedisName("installation", "string", "registry", "name of this Redis; restored by workers"),
        _family("fellows", "zset", "registry", "Lease: worker -> ms until which it may work; PX"),
        RedisName(
            "doubts", "hash", "registry", "kind -> unreadable catalog entry; until the next list"
        ),
        RedisName("presence", "zset", "registry", "'role host pid' of a watcher -> when it ends"),
        # Capacity objects: the next plan rebuilds these keys.
        _by_driver("capacity", "hash", "capacity", "item -> its object; until it is gone"),
        _by_driver("capacity_uids", "hash", "capacity", "uid -> item, as `capacity`"),
        _by_driver("capacity_obsolete", "hash", "capacity", "name -> uid; until deleted"),
        _by_driver("capacity_planned", "string", "capacity", "input of the last plan"),
        _by_driver("capacity_turn", "string", "capacity", "ms of a full write bucket; PX"),
        # Times of periodic work.
        _family("period", "string", "periods", "name of the work -> ms when it is due again; PX"),
        # The recent history of each key, for `explain`.
        _family("trail", "list", "events", "kind|object|uid: last 40 notes 'ms event'; 1 h"),
        # A shadow's predictions and verdicts, per driver; kept for 30 days after the last write.
        _by_driver("shadow_open", "hash", "shadow", "object's path -> prediction json"),
        _by_driver("shadow_counts", "hash", "shadow", "verdict -> how often"),
        _by_driver("shadow_notes", "list", "shadow", "last 200 differences, json"),
        _by_driver("shadow_known", "set", "shadow", "paths that were predicted or judged"),
        # Records that could not be read.
        RedisName("quarantine", "hash", "quarantine", "'key field' -> raw value; 7 days"),
        _family("quarantined", "string", "quarantine", "renamed wrong-typed key, any type; 7 days"),
    )
}


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one cluster's keys: the declared names, under the cluster's own prefix."""

    prefix: str = PREFIX

    def full(self, name: str) -> str:
        """Return the declared key, or the prefix of the family's keys."""
        return self.prefix + name + (":" if NAMES[name].is_family else "")

    def declared(self, full_name: str) -> RedisName | None:
        """Return the declaration of a key found in Redis; None if it is not declared."""
        if not full_name.startswith(self.prefix):
            return None
        name = full_name.removeprefix(self.prefix)
        exact = NAMES.get(name)
        if exact is not None and (not exact.is_family or name in FORMER):
            return exact
        family_name, colon, _ = name.partition(":")
        family = NAMES.get(family_name) if colon else None
        return family if family is not None and family.is_family else None

    @property
    def celery_lists(self) -> str:
        """The prefix of the names of all Celery lists; it is shorter for the default cluster."""
        return ("" if self.prefix == PREFIX else self.prefix) + CELERY_QUEUE_PREFIX

    def celery_queue(self, place: str) -> str:
        """Return the name of the Celery queue (a Redis list) for a place's work (`place_of`).

        The list must be in the same Redis database as csi-fleet's keys, because the scripts read
        its length.
        """
        return self.celery_lists + place

    def lua_table(self) -> str:
        """Return the names as a Lua table `K`, to be prepended to the scripts."""
        fields = ", ".join(f"{name} = '{self.full(name)}'" for name in NAMES)
        return f"local K = {{ {fields}, celery = '{self.celery_lists}' }}\n"


USUAL: Final = Names()


def names_of(client: redis.Redis) -> Names:
    """Return the key names that are attached to a client (see `connection.connect`)."""
    names: Names = getattr(client, "names", USUAL)
    return names


def redis_key(client: redis.Redis, name: str) -> str:
    """Return a declared key, or the prefix of a family's keys, with this client's prefix."""
    return names_of(client).full(name)


def driver_key(client: redis.Redis, name: str, driver: str) -> str:
    """Return the key for one driver's part of a `by_driver` family."""
    return redis_key(client, name) + spelled(driver)


def proof_place(client: redis.Redis, name: str) -> str:
    """Return the place covered by a record's signature: the record's family, without the driver.

    The previous release kept the records of all drivers in one hash with that name. So its
    signatures, there and in ConfigMaps, are still valid.
    """
    return redis_key(client, name).removesuffix(":")


def literal(text: str) -> str:
    """Return the Redis pattern that matches only this string."""
    return _GLOB.sub(r"\\\g<0>", text)


def celery_queue(place: str) -> str:
    """Return the name of a place's Celery list in the default cluster."""
    return USUAL.celery_queue(place)
