"""Faults that change what other parts rely on: clocks, revisions, classes, names, silent watches.

They are drawn together with those of `Faults`, and need a system with `has_clocks` and
`has_slow_lists`. The test defines what users do meanwhile (`feed`), and again after a restore of
etcd (`reapply`); the users' claims and snapshots are in `cuts`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

from tests.support.chaos import System
from tests.support.faults import LOSES_LEASES, Faults
from tests.support.fleet import Scene
from tests.support.kube_api import JsonObject
from tests.support.snapshot_changing import ROOT, Cuts
from tests.support.waiting import let_pass, wait_until

HOUR, DAY = 3600, 86400
STEPS = (HOUR, -HOUR, DAY, -DAY)
LISTED = ("volumeattachments", "persistentvolumes", "persistentvolumeclaims", "storageclasses")
LOST_ANSWER = {"code": "UNAVAILABLE", "after_work": True}
PREFIX_FLAG = "--volume-name-prefix=vol"
ENDS_LEASES = {*LOSES_LEASES, "clock of redis", "etcd restored", "names change"}
SECONDS = 180  # before a restore, all watches may have been silent for a while
DEAD_CLAIMS, DEAD_CALLS = 10, 6


class MovingFaults(Faults):
    """The faults for a system in which `Cuts` simulates the users.

    Args:
        system: the system.
        scene: the scene that contains the users' claims.
        seed: the seed of all random choices.
        rules: the driver's usual rules; a fault adds others for a while.
        away_seconds: the age of the etcd backups.

    Attributes:
        share: how many claims users create at a time.
    """

    share = 2

    def __init__(
        self,
        system: System,
        scene: Scene,
        seed: int,
        *,
        rules: tuple[JsonObject, ...],
        away_seconds: float,
    ) -> None:
        super().__init__(system, seed)
        if not (system.has_clocks and system.has_slow_lists):
            raise ValueError("clocks step and lists are slow: System(has_clocks, has_slow_lists)")
        self.scene, self.rules, self.away_seconds = scene, rules, away_seconds
        self.cuts = Cuts(system, scene, self.random, self.insist)
        driver = system.driver.name
        self.storages = {
            name: scene.storage_class(driver, name, parameters={"storage": name})
            for name in ("east", "west")
        }
        self.remade = self.restores = 0
        # How many seconds living claims waited while another storage system was dead.
        self.waits: list[float] = []
        # What the storage had after a restore of etcd, but the API server did not. csi-fleet
        # requests some of it again.
        self.lost_volumes: set[str] = set()
        self.lost_snapshots: set[str] = set()
        self.lost_pairs: set[tuple[str, str]] = set()
        self.set_rules()

    def feed(self, count: int) -> None:
        """Let users create some objects and delete others."""
        raise NotImplementedError

    def known(self) -> tuple[set[str], set[str], set[tuple[str, str]]]:
        """Return the handles of volumes and snapshots, and pairs of handle and node id, from the
        API server."""
        raise NotImplementedError

    def stored(self) -> tuple[set[str], set[str], set[tuple[str, str]]]:
        """Return the same as `known`, from the storage."""
        raise NotImplementedError

    def reapply(self) -> None:
        """Let users notice missing or returned objects, and create or delete them again."""
        raise NotImplementedError

    def set_rules(self, *first: JsonObject) -> None:
        """Set the driver's rules: some additional ones before the usual ones."""
        self.system.driver.set_rules(*first, *self.rules)

    def step_clock(self, name: str) -> None:
        """Set a part's clock forward or back by an hour or a day."""
        self.system.step_clock(name, self.random.choice(STEPS))

    def restore_etcd(self) -> None:
        """Restore etcd from a backup that was made earlier; users and workers have continued
        since then."""
        backup = self.system.plane.back_up()
        for _ in range(5):
            self.feed(self.share)
            let_pass(self.away_seconds / 5)
        self.system.plane.restore(backup)
        # The storage also has what csi-fleet could not save before the API server was killed.
        stored, known = self.insist(self.stored), self.insist(self.known)
        self.lost_volumes |= stored[0] - known[0]
        self.lost_snapshots |= stored[1] - known[1]
        self.lost_pairs |= stored[2] - known[2]
        self.restores += 1
        self.reapply()

    def remake_class(self) -> None:
        """Recreate a class while calls for its claims have an unknown outcome; delete some of
        the claims too."""
        self.remade += 1
        name, driver = f"anew{self.remade}", self.system.driver.name
        made = {"made": name}
        self.set_rules(
            {"method": "CreateVolume", "match": f"made={name}", "times": 6, **LOST_ANSWER}
        )
        self.insist(lambda: self.scene.storage_class(driver, name, parameters=made))
        full = f"{self.scene.name}-{name}"
        claims = [self.cuts.claim_of(full) for _ in range(4)]
        wait_until(lambda: self.calls_with(made), SECONDS, "CreateVolume of the class")
        self.insist(lambda: self.scene.delete_class(full))
        again = {**made, "tier": "new"}
        self.insist(lambda: self.scene.storage_class(driver, name, parameters=again))
        for claim in claims[:2]:
            self.cuts.drop_claim(claim)
        # Otherwise a backup of etcd could restore the claim without the record of its volume, and
        # no process could know the parameters of the volume.
        wait_until(lambda: self.are_bound(claims[2:]), SECONDS, "claims of a class made anew")
        self.set_rules()

    def calls_with(self, parameters: dict[str, str]) -> list[object]:
        """Return the calls to CreateVolume with these parameters."""
        calls = self.system.driver.calls("CreateVolume")
        wanted = parameters.items()
        return [one for one in calls if wanted <= one.request.get("parameters", {}).items()]

    def are_bound(self, names: list[str]) -> bool:
        """Return True if all these claims are bound; the error names those that are not."""
        found = self.scene.claims()
        phases = {name: (found.get(name) or {}).get("status", {}).get("phase") for name in names}
        assert set(phases.values()) <= {"Bound"}, phases
        return True

    def remake_snapshot_class(self) -> None:
        """Recreate the snapshot class while answers to CreateSnapshot are lost."""
        self.remade += 1
        self.set_rules({"method": "CreateSnapshot", "times": 4, **LOST_ANSWER})
        claims = self.insist(self.scene.claims)
        bound = [name for name in self.cuts.claims if _phase(claims.get(name)) == "Bound"]
        for name in bound[-3:]:
            self.cuts.cut(name)
        let_pass(self.random.uniform(0.5, 2))
        path = f"{ROOT}/volumesnapshotclasses/{self.cuts.snapshot_class}"
        self.insist(lambda: self.cuts.api.delete(path))
        self.cuts.add_class(made=str(self.remade))
        wait_until(self.are_cut, SECONDS, "snapshots of a class made anew")
        self.set_rules()

    def are_cut(self) -> bool:
        """Return True if each wanted snapshot is ready, except those that cannot be created."""
        claims, found = self.scene.claims(), self.cuts.found()
        waiting = [
            name
            for name, claim in self.cuts.snapshots.items()
            if _phase(claims.get(claim)) == "Bound"
            and not (found.get(name, {}).get("status") or {}).get("readyToUse")
        ]
        assert not waiting, waiting
        return True

    def change_names(self) -> None:
        """Restart one worker with another prefix for its volumes' names, or without the prefix."""
        part = self.system.parts[self.any_worker()]
        if PREFIX_FLAG in part.command:
            part.command.remove(PREFIX_FLAG)
        else:
            part.command.append(PREFIX_FLAG)
        part.kill()

    def silence_watches(self) -> None:
        """Let the watches of one watcher, or of all, stay open without delivering events."""
        names = self.system.watchers_()
        for name in self.random.choice([names, names[:1], names[1:]]):
            self.system.api_ways[name].fall_silent()

    def restart_watchers(self) -> None:
        """Restart all watchers at once, while the list of one kind takes long."""
        resource = self.random.choice(LISTED)
        for lists in self.system.lists.values():
            lists.hold(resource, self.random.uniform(5, 12))
        for name in self.system.watchers_():
            self.system.kill(name)

    def kill_one_storage(self) -> None:
        """Let one of two storage systems fail; claims for the other one must not wait."""
        east = {"storage": "east"}
        before = len(self.calls_with(east))
        self.set_rules({"method": "CreateVolume", "match": "storage=east", "code": "UNAVAILABLE"})
        for _ in range(DEAD_CLAIMS):
            self.cuts.claim_of(self.storages["east"])
        wait_until(
            lambda: len(self.calls_with(east)) >= before + DEAD_CALLS,
            SECONDS,
            "calls for the dead storage fail",
        )
        started = time.monotonic()
        living = [self.cuts.claim_of(self.storages["west"]) for _ in range(2)]
        wait_until(lambda: self.are_bound(living), SECONDS, "claims of the living storage")
        self.waits.append(round(time.monotonic() - started, 1))
        self.set_rules()

    moving_kinds: ClassVar[dict[str, Callable[[Any], object]]] = {
        "clock of redis": lambda self: self.step_clock("redis"),
        "clock of a worker": lambda self: self.step_clock(self.any_worker()),
        "clock of a watcher": lambda self: self.step_clock(
            self.random.choice(self.system.watchers_())
        ),
        "names change": change_names,
        "etcd restored": restore_etcd,
        "class made anew": remake_class,
        "snapshot class made anew": remake_snapshot_class,
        "watches silent": silence_watches,
        "watchers restarted with a slow list": restart_watchers,
        "one storage of two dead": kill_one_storage,
    }
    fault_kinds: ClassVar[dict[str, Callable[[Any], object]]] = {
        **Faults.fault_kinds,
        **moving_kinds,
    }


def _phase(claim: JsonObject | None) -> str:
    return str((claim or {}).get("status", {}).get("phase", ""))
