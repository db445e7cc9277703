"""Snapshots, restores and deletions at random while every process dies (SNT-100).

    CHAOS_SEED=n CHAOS_SNAPSHOTS=200 CHAOS_FAULTS=40 pytest tests/chaos/test_snapshots.py -s

Once all work is done, the storage has one snapshot per content and one volume per PV, and no
finalizer is stuck. The faults are those of `tests/support/faults.py`; `CHAOS_KEEP=dir` keeps logs.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
import redis

from tests.support.chaos import System
from tests.support.faults import LOSES_DATA, Faults
from tests.support.fleet import Scene
from tests.support.snapshot_changing import CONTROLLERS, RULES, Cuts, half_way
from tests.support.waiting import let_pass, wait_until

COUNT = int(os.environ.get("CHAOS_SNAPSHOTS", "24"))
FAULTS = int(os.environ.get("CHAOS_FAULTS", "6"))
SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
SETTLE_SECONDS = float(os.environ.get("CHAOS_SETTLE", "150"))
CLAIMS = 4


class SnapshotChaos(Faults):
    """The schedule of faults and users, drawn from one seed."""

    def __init__(self, system: System, scene: Scene, seed: int) -> None:
        super().__init__(system, seed)
        self.cuts = Cuts(system, scene, self.random, self.insist)
        self.faults: list[tuple[float, str]] = []
        for _ in range(CLAIMS):
            self.cuts.claim()

    def run(self) -> None:
        """Run faults in a random order, each between requests of users."""
        names = sorted(self.fault_kinds)
        schedule = [name for _ in range(-(-FAULTS // len(names))) for name in names]
        share = -(-COUNT // FAULTS)
        for name in self.random.sample(schedule, FAULTS):
            self.step(share)
            if name in LOSES_DATA:  # docs/guarantees.md: never together with a dead owner
                wait_until(self.system.is_whole, 90, "every attempt has an owner")
            self.faults.append((time.time(), name))
            self.fault_kinds[name](self)
            self.step(1)
            self.system.note_undeclared()
            let_pass(self.random.uniform(0.2, 1.5))

    def step(self, count: int) -> None:
        """Take new snapshots; restore some, and delete some snapshots and source claims."""
        cuts, draw = self.cuts, self.random.random
        for _ in range(count):
            cuts.cut(cuts.one(cuts.claims))
            if draw() < 0.5:
                cuts.claim(cuts.one(cuts.snapshots))
            if draw() < 0.5:
                cuts.drop_snapshot(cuts.one(cuts.snapshots))
            if draw() < 0.4 and len(cuts.claims) > CLAIMS:
                cuts.drop_claim(cuts.one(cuts.claims))

    def rest(self) -> None:
        """Wait until users have deleted what can no longer be created and all else is done."""
        wait_until(self.is_settled, SETTLE_SECONDS, "at rest", interval_seconds=0.5)

    def is_settled(self) -> bool:
        for name in self.cuts.hopeless():
            self.cuts.drop_claim(name)
        for name, source in list(self.cuts.snapshots.items()):
            if source not in self.cuts.claims and name not in self.ready():
                self.cuts.drop_snapshot(name)
        return self.cuts.is_at_rest()

    def ready(self) -> set[str]:
        """Return the snapshots that were taken before their claim was deleted."""
        found = self.cuts.found().items()
        return {name for name, one in found if (one.get("status") or {}).get("readyToUse")}

    def drop_all(self) -> None:
        """Delete all snapshots and claims."""
        for name in list(self.cuts.snapshots):
            self.cuts.drop_snapshot(name)
        for name in list(self.cuts.claims):
            self.cuts.drop_claim(name)


@pytest.mark.timeout(1800)
def test_storage_and_objects_agree_at_rest(own_plane, redis_binary, tmp_path, capsys):
    """G1 to G9, SNQ-005, SNQ-011: nothing is lost or left.

    No source is deleted during a restore.
    """
    directory = Path(os.environ.get("CHAOS_KEEP", tmp_path)) / f"snapshots-{SEED}"
    with capsys.disabled():
        print(f"\nCHAOS_SEED={SEED} CHAOS_SNAPSHOTS={COUNT} faults={FAULTS}")
    with System(
        directory,
        own_plane,
        redis_binary,
        is_proxied=True,
        appendonly=True,
        flags=("--resync-period=10s",),
        worker_flags=(
            "--provisioner-timeout=5s",
            "--snapshotter-timeout=5s",
            "--retry-interval-max=5s",
            "--snapshot-orphan-sweep-interval=5s",
        ),
        controllers=CONTROLLERS,
    ) as system:
        scene = Scene(system.api)
        chaos = SnapshotChaos(system, scene, SEED)
        try:
            system.driver.set_rules(*RULES)
            chaos.run()
            chaos.rest()
            chaos.drop_all()
            chaos.rest()
            wait_until(lambda: not system.volumes(), SETTLE_SECONDS, "volumes are gone")
            system.assert_at_rest(SETTLE_SECONDS)
            wait_until(lambda: not marks(system), SETTLE_SECONDS, "nothing is remembered")
            assert half_way(system.driver.calls()) == []
            assert system.log_lines("unexpected error", "Unrecoverable error") == []
        except BaseException:
            print("faults:", chaos.faults, "left:", system.queue_left()[:20], system.copies())
            print(*system.queue_state(), sep="\n")
            raise
        finally:
            system.driver.set_rules()
            scene.clean_up()
            chaos.cuts.clean_up()


def marks(system: System) -> list[str]:
    """Return the reconcile state that controllers still store for objects."""
    with redis.Redis.from_url(system.redis.url, decode_responses=True) as client:
        return sorted(
            mark for key in client.scan_iter("csifleet:marks:*") for mark in client.hkeys(key)
        )
