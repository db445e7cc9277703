"""A Redis that contains every kind of record of csi-fleet, and every function that reads them.

The fuzz test runs `READERS`; tests/integration/queue/test_hostile_records.py checks that they cover
every function of workers/queue that reads, and every script.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis

from tests.support.hostile_tools import Desk
from workers.errors import LeaseLost
from workers.queue import formerrecords, inspect
from workers.queue.capacities import CapacityStore
from workers.queue.catalog import CatalogReader, CatalogWriter
from workers.queue.catalogkinds import KIND_ATTACHMENTS, KIND_CLASSES
from workers.queue.celerykeys import CeleryKeys
from workers.queue.clock import read_clock
from workers.queue.fellows import LeaseFellows
from workers.queue.intents import IntentStore
from workers.queue.keys import Key, claim_key
from workers.queue.leases import Lease
from workers.queue.limits import read_stats
from workers.queue.links import ANYWHERE, Links
from workers.queue.locks import Lock, Mode
from workers.queue.marks import Remembered
from workers.queue.names import NAMES, proof_place
from workers.queue.pauses import Pauses
from workers.queue.periods import Periods
from workers.queue.presence import Presence
from workers.queue.recovery import Recovery
from workers.queue.registry import DriverRegistry
from workers.queue.scripts import repair
from workers.queue.seal import Seal
from workers.queue.shadows import Shadows
from workers.queue.workqueue import WorkQueue

DRIVER = "d"
OWN, OTHER = claim_key(DRIVER, "team", "own", "u1"), claim_key(DRIVER, "rest", "other", "u2")
DOMAINS = {OWN: "pvc-u1", OTHER: "pvc-u2"}
SEAL = Seal.of_lines(["k" * 64])
# The records of a key that can lead to an effect: for each Redis hash, the field of the other key.
# Pauses mirror the API server, and readers write them again.
REMEMBERED = {
    NAMES["intents"].full + DRIVER: DOMAINS[OTHER],
    NAMES["unsaved"].full + DRIVER: DOMAINS[OTHER],
    NAMES["marks"].full + DRIVER: OTHER.text,
    NAMES["memos"].full + DRIVER: OTHER.text,
    NAMES["fails"].full: OTHER.text,
    NAMES["capacity"].full + "other": "item",
}
MARK = {"call": {"until": 1}}
NOTE = {"at": 1.0, "found": ["it"]}
PREDICTION = {
    "base": {"metadata": {"uid": "u"}},
    "wanted": None,
    "calls": [{"method": "Controller/DeleteVolume", "request": {}}],
    "at": 1.0,
}
_SHARED = Lock("shared", Mode.SHARED)


@dataclass
class Hostile:
    """One process that works with that Redis."""

    client: redis.Redis

    def __post_init__(self) -> None:
        self.queue = WorkQueue(self.client, publish=lambda _: None, seal=SEAL)
        self.intents = IntentStore(self.client, SEAL, driver=DRIVER)
        self.writer, self.reader = CatalogWriter(self.client), CatalogReader(self.client)
        self.registry = DriverRegistry(self.client)
        self.links = Links(self.client, publish=lambda _: None)
        self.pauses = Pauses(self.client, self.queue)
        self.capacity, self.shadows = CapacityStore(self.client), Shadows(self.client)
        self.recovery = Recovery(self.client, self.queue, period_seconds=0.001)

    def taken(self, key: Key = OWN) -> Lease | None:
        """Take the key as a worker does; return None if the queue holds it back."""
        self.queue.add([key])
        self.queue.pump(period_seconds=0)
        others: list[Lease] = []
        try:
            while (lease := self.queue.take(key.driver, [key.kind])) is not None:
                if lease.key == key:
                    entered = self.queue.enter(lease, [Lock(DOMAINS[key]), _SHARED])
                    return lease if entered else None
                others.append(lease)
            return None
        finally:
            for one in others:
                self.queue.release(one)

    def passes(self, key: Key = OWN) -> Iterator[Lease]:
        """Yield the lease of one reconcile, if there is one."""
        with suppress(LeaseLost):
            lease = self.taken(key)
            if lease is not None:
                yield lease
                if not lease.is_released:
                    self.queue.release(lease)

    def fill(self) -> None:
        """Write everything that a working installation stores."""
        self.queue.register_process()
        self.queue.set_limits(OWN.lane, 10, rate_per_second=1000, burst=100, total=20)
        self.queue.set_limits(f"volumes|{DRIVER}", 1, total=20, hold_seconds=5)
        self.queue.pause("claims|e", "why", seconds=60)
        self.client.hset(NAMES["doubts"].full, KIND_CLASSES, "one")
        epoch = self.writer.epoch()
        for kind in (KIND_CLASSES, KIND_ATTACHMENTS):
            self.writer.replace(kind, [("one", "7", {"metadata": {"name": "one"}})], "9")
            for version, value in (("7", {}), ("8", None)):
                self.writer.write(kind, [("gone", version, value)])
        self.writer.mark_complete([KIND_CLASSES, KIND_ATTACHMENTS], epoch)
        self.writer.keep_fresh([KIND_CLASSES, KIND_ATTACHMENTS], epoch)
        self.registry.register(
            DRIVER, {"name": DRIVER, "controllers": ["provisioner"]}, ttl_seconds=60
        )
        self.links.keep({DRIVER: b'{"name":"d"}'}, {DRIVER: ANYWHERE}, ttl_seconds=60)
        self.links.lost("e", "refused")
        self.queue.mirror_pauses("5", {"class stopped": "0 why", "driver e": "0 why"})
        for key in (OTHER, OWN):
            self.remember(key)
        for driver in (DRIVER, "other"):
            self.capacity.put(driver, {"item": capacity("u")})
            self.capacity.notice(driver, {"epoch": epoch})
        self.capacity.replace(DRIVER, {}, {"item": capacity("u")}, {"old": "v"})
        self.capacity.turn(DRIVER, qps=10, burst=1)
        self.shadows.put(DRIVER, "/path", PREDICTION)
        self.shadows.tell(DRIVER, "/path", "differs", NOTE)
        Presence(self.client).announce("watcher")
        Presence(self.client).complain("watcher", ["claims: forbidden"])
        LeaseFellows(self.client, settle_seconds=0).works("lease", "me", 60)
        Periods(self.client).is_due("thing", 60)

    def believed(self) -> Iterator[tuple[Any, Any]]:
        """Yield what a worker believes about its own key's records, and what was recorded."""
        yield self.intents.get(DOMAINS[OWN]), {"key": OWN.text}
        yield self.intents.all_pvs().get(DOMAINS[OWN]), pv(OWN)
        yield self.queue.marks_of([OWN])[0], MARK

    def remember(self, key: Key) -> None:
        """Write one open attempt, after one failure."""
        for lease in self.passes(key):
            self.intents.created(DOMAINS[key], {"key": key.text}, pv(key), lease)
            self.queue.mark(lease, MARK)
            self.queue.add_events({key: "5"})
            self.queue.fail(lease, base_seconds=60, cap_seconds=60, memo='{"slow_until": 1}')


def capacity(uid: str) -> dict[str, Any]:
    """Return a capacity object as it is stored."""
    return {"metadata": {"uid": uid, "resourceVersion": "3"}, "capacity": "1Gi"}


def pv(key: Key) -> dict[str, Any]:
    """Return an unsaved PV."""
    return {"metadata": {"name": DOMAINS[key]}, "spec": {"claimRef": {"uid": key.uid}}}


Reader = Callable[[Hostile], object]


def _fail(world: Hostile) -> None:
    for lease in world.passes():
        world.intents.opened(lease)
        world.intents.created(DOMAINS[OWN], {"key": OWN.text}, pv(OWN), lease)
        world.queue.fail(lease, base_seconds=1, cap_seconds=9, threshold=3, memo="{}")


def _done(world: Hostile) -> None:
    for lease in world.passes():
        world.intents.begin(DOMAINS[OWN], {"key": OWN.text}, lease)
        world.queue.acquire(lease, Lock("more"), Lock("shared"))
        world.queue.unlock(lease, "more")
        world.queue.mark(lease, {"a": 1})
        world.queue.add([OWN])
        world.queue.done(lease, finish_intent=True, known="6")


def _block(world: Hostile) -> None:
    for _ in world.passes(OTHER):
        for lease in world.passes():
            world.queue.block(lease, Lock(DOMAINS[OTHER]))
            inspect.read_key(world.client, OWN)


def _new_life(world: Hostile) -> None:
    """Let Redis lose its epoch while a lease is held, so that everything is restored."""
    for _ in world.passes():
        world.client.delete(NAMES["epoch"].full)
        world.queue.heartbeat()
        world.queue.declared.again(is_new_life=True)


def _lost(world: Hostile) -> None:
    """End a lease too late, so that its records remain for the next owner."""
    for lease in world.passes():
        world.intents.begin(DOMAINS[OWN], {"key": OWN.text}, lease)
        world.client.hdel(NAMES["leases"].full, OWN.text)
        world.client.delete(NAMES["epoch"].full)
        world.queue.done(lease)


def _close(world: Hostile) -> None:
    for _ in world.passes():
        world.queue.close()


def _desk(world: Hostile) -> Desk:
    return Desk(world.client, DRIVER)


def former_records(world: Hostile) -> None:
    """Write the records that the previous release left for this key."""
    record = world.intents.sealed(DOMAINS[OWN], {"key": OWN.text})
    for name in ("intents", "unsaved"):
        world.client.hset(proof_place(world.client, name), DOMAINS[OWN], record)
    formerrecords.adopt(world.client)


SLOW = 8
"""Run the readers for people, which take longest, in only one of several cases."""
_SERIAL = itertools.count(1)
READERS: dict[str, Reader] = {
    "add": lambda w: w.queue.add([OWN, OTHER]),
    "add later": lambda w: w.queue.add([OWN], delay_seconds=5),
    "add an event": lambda w: w.queue.add_events({OWN: str(next(_SERIAL)), OTHER: "4"}),
    "ensure": lambda w: w.queue.ensure([OWN]),
    "forget": lambda w: w.queue.forget([OWN]),
    "pump": lambda w: w.queue.pump(period_seconds=0),
    "pump at its pace": lambda w: w.queue.pump(period_seconds=0.001),
    "heartbeat": lambda w: w.queue.heartbeat(),
    "a pass that fails": _fail,
    "a pass that is done": _done,
    "a pass that blocks": _block,
    "a new life": _new_life,
    "a lost lease": _lost,
    "the end of a process": _close,
    "limits": lambda w: w.queue.set_limits(OWN.lane, 5, rate_per_second=3),
    "pause a lane": lambda w: w.queue.pause(OWN.lane, "x", seconds=0.001),
    "resume a lane": lambda w: w.queue.resume(OWN.lane),
    "marks": lambda w: w.queue.marks_of([OWN, OTHER]),
    "a forged mark": lambda w: Remembered(w.client, SEAL).mark_of(OWN, "forged"),
    "stats": lambda w: read_stats(w.client),
    "one key": lambda w: inspect.read_key(w.client, OWN),
    "waiting keys": lambda w: inspect.waiting_keys(w.client, OWN.lane, 0, 10),
    "failed keys": lambda w: inspect.failed_keys(w.client),
    "sizes": lambda w: inspect.read_sizes(w.client),
    "repair": lambda w: repair(w.client),
    "redis itself": lambda w: (
        inspect.read_redis(w.client),
        read_clock(w.client),
        inspect.read_age(w.client),
    ),
    "life of redis": lambda w: inspect.read_life(w.client),
    "marks of a driver": lambda w: inspect.marks_of_driver(w.client, ["claims"], DRIVER),
    "an intent": lambda w: w.intents.get(DOMAINS[OWN]),
    "all intents": lambda w: w.intents.all(),
    "all unsaved": lambda w: w.intents.all_pvs(),
    "restore an intent": lambda w: w.intents.restore(
        DOMAINS[OWN], w.intents.sealed(DOMAINS[OWN], {"key": OWN.text})
    ),
    "a record without a lease": lambda w: w.intents.put("pvc-u3", {"key": OWN.text}),
    "finish without a lease": lambda w: w.intents.finish("pvc-u3"),
    "drop an intent": lambda w: w.intents.delete("pvc-u3"),
    "drop an unsaved PV": lambda w: w.intents.delete_pv("pvc-u3"),
    "former records": former_records,
    "recovery": lambda w: w.recovery.run(lambda _volume: [OWN]),
    "epoch": lambda w: w.writer.epoch(),
    "catalog: what lacks": lambda w: w.writer.incomplete([KIND_CLASSES], "e"),
    "catalog: replace": lambda w: w.writer.replace(KIND_CLASSES, [("one", "7", {})], "9"),
    "catalog: replace all": lambda w: w.writer.replace(KIND_CLASSES, [], "90"),
    "catalog: write": lambda w: w.writer.write(KIND_CLASSES, [("one", "11", {"a": 1})]),
    "catalog: complete": lambda w: w.writer.mark_complete([KIND_CLASSES], "e"),
    "catalog: fresh": lambda w: w.writer.keep_fresh([KIND_CLASSES], w.writer.epoch()),
    "catalog: history": lambda w: w.writer.end_history(w.writer.epoch()),
    "catalog: read": lambda w: w.reader.all(KIND_CLASSES),
    "catalog: read anew": lambda w: CatalogReader(w.client).all(KIND_CLASSES),
    "catalog: attachment": lambda w: w.reader.attachment("one"),
    "registry": lambda w: w.registry.alive(),
    "celery keys": lambda w: CeleryKeys(
        w.client, w.client, system="system", drivers=w.registry.alive
    ).step(),
    "register": lambda w: w.registry.register("e", {"name": "e"}, ttl_seconds=60),
    "link: lost": lambda w: w.links.lost(DRIVER, "why"),
    "link: back": lambda w: w.links.back(DRIVER, 60),
    "link: keep": lambda w: w.links.keep({DRIVER: "{}"}, {DRIVER: ANYWHERE}, ttl_seconds=60),
    "throttle": lambda w: w.links.throttle(OWN.lane),
    "pace": lambda w: w.links.pace(OWN.lane),
    "paused classes": lambda w: (w.pauses.classes(), w.pauses.of_class("fast")),
    "mirror pauses": lambda w: w.queue.mirror_pauses(
        "7", {"class stopped": "0 why", "driver f": "0 why"}
    ),
    "whether pauses are mirrored": lambda w: w.pauses.is_mirrored(),
    "draining": lambda w: w.pauses.draining(DRIVER),
    "capacity: known": lambda w: w.capacity.known(DRIVER, "item"),
    "capacity: all": lambda w: w.capacity.all(DRIVER),
    "capacity: item": lambda w: w.capacity.item_of(DRIVER, "u"),
    "capacity: obsolete": lambda w: w.capacity.obsolete_uid(DRIVER, "old"),
    "capacity: counts": lambda w: w.capacity.counts(DRIVER),
    "capacity: plan": lambda w: w.capacity.noticed(DRIVER),
    "capacity: put": lambda w: w.capacity.put(DRIVER, {"item": capacity("u")}),
    "capacity: replace": lambda w: w.capacity.replace(
        DRIVER, w.capacity.all(DRIVER), {"item": capacity("u")}, {"old": "v"}
    ),
    "capacity: drop": lambda w: w.capacity.drop(DRIVER, {"item": capacity("u")}),
    "capacity: deleted": lambda w: w.capacity.deleted(DRIVER, "old"),
    "capacity: postponed": lambda w: (w.capacity.postponed([OWN]), w.capacity.failing([OWN])),
    "capacity: turn": lambda w: w.capacity.turn(DRIVER, qps=1000, burst=9),
    "shadow: put": lambda w: w.shadows.put(DRIVER, "/path", {"base": None}),
    "shadow: open": lambda w: w.shadows.open(DRIVER),
    "shadow: find": lambda w: w.shadows.find(DRIVER, "/path"),
    "shadow: waiting": lambda w: [one["at"] for one in w.shadows.waiting(DRIVER)],
    "shadow: known": lambda w: w.shadows.is_known(DRIVER, "/path"),
    "shadow: close": lambda w: w.shadows.close(DRIVER, "/path", "same", NOTE),
    "shadow: report": lambda w: [w.shadows.report(name) for name in (DRIVER, *w.shadows.drivers())],
    "presence": lambda w: [
        Presence(w.client).alive(),
        Presence(w.client).workers(),
        Presence(w.client).troubles(),
    ],
    "announce": lambda w: Presence(w.client).announce("watcher"),
    "work by a Lease": lambda w: LeaseFellows(w.client, settle_seconds=0).works("lease", "me", 60),
    "name of a Redis": lambda w: LeaseFellows(w.client, settle_seconds=0).installation(""),
    "last by a Lease": lambda w: LeaseFellows(w.client, settle_seconds=0).is_last("lease", "me"),
    "a period": lambda w: Periods(w.client).is_due("thing", 1),
    "a new period": lambda w: Periods(w.client).restart("thing", 1),
    "commands, for people": lambda w: _desk(w).ask("text"),
    "commands, for programs": lambda w: _desk(w).ask("json"),
    "command: pause": lambda w: _desk(w).stop(),
    "watcher": lambda w: _desk(w).watch(),
}
