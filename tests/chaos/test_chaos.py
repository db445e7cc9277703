"""Claims are created and deleted while every process dies at random moments.

    CHAOS_SEED=n CHAOS_CLAIMS=500 CHAOS_DELETES=250 pytest tests/chaos/test_chaos.py -s

At the end nothing is lost or left over. The driver runs calls of the same name in parallel, as many
drivers do, and continues after its caller is gone. The seed determines the schedule, but not the
timing of processes. `CHAOS_KEEP=dir` keeps logs.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.changing import DRIVER_ARGUMENTS, EXPAND, MODIFY, RULES, Changes
from tests.support.chaos import System
from tests.support.faults import (
    ELECTION,
    LOSES_DATA,
    LOSES_LEASES,
    Faults,
    overlaps_without_fault,
)
from tests.support.fleet import Scene
from tests.support.waiting import let_pass, wait_until

CLAIMS = int(os.environ.get("CHAOS_CLAIMS", "60"))
DELETES = int(os.environ.get("CHAOS_DELETES", str(CLAIMS // 2)))
FAULTS = int(os.environ.get("CHAOS_FAULTS", str(max(14, CLAIMS // 8))))
SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
# Runs with at least this many claims have time for faults that wait for a bound source first.
LONG = 200
SETTLE_SECONDS = float(os.environ.get("CHAOS_SETTLE", "150"))


class Chaos(Faults):
    """The schedule of faults and claims, drawn from one seed."""

    def __init__(self, system: System, scene: Scene, storage_class: str, seed: int) -> None:
        super().__init__(system, seed)
        self.scene, self.storage_class = scene, storage_class
        self.to_create = [f"c{index:03}" for index in range(CLAIMS)]
        self.alive: list[str] = []
        self.deleted: list[str] = []
        self.faults: list[tuple[float, str]] = []
        # Times after which a lease may have been lost while its call continued.
        self.lease_ends: list[float] = []
        self.doomed = 0
        self.others: list[Scene] = []
        self.started = time.monotonic()
        self.changes = Changes(system, scene, self.random)

    def run(self) -> None:
        """Run every kind of fault at least once, and further ones at random."""
        names = sorted(self.fault_kinds)
        schedule = names + self.random.choices(names, k=max(0, FAULTS - len(names)))
        self.random.shuffle(schedule)
        share = -(-CLAIMS // max(1, len(schedule)))
        for name in schedule:
            self.feed(share)
            self.faults.append((round(time.monotonic() - self.started, 1), name))
            before = time.time()
            if name in LOSES_DATA:
                self.calm()
                before = time.time()
            self.fault_kinds[name](self)
            if name in LOSES_DATA:
                self.aftermath(before)
            if name in LOSES_LEASES:
                self.lease_ends.append(before)
            self.feed(0)
            self.changes.step(share)
            self.system.note_undeclared()
            let_pass(self.random.uniform(0.2, 2.0))
        while self.to_create:
            self.feed(share)
        while len(self.deleted) < DELETES:
            self.delete_one()

    def calm(self) -> None:
        """Wait until every open attempt has a living owner or an intent copy.

        A volume can be lost in one case only: Redis loses its data within seconds of the death of
        the attempt's owner, and the claim is deleted too (docs/guarantees.md). Random faults must
        not add up to this case.
        """
        wait_until(self.system.is_whole, 90, "every attempt has an owner", interval_seconds=0.1)

    def aftermath(self, lost_at: float) -> None:
        """Wait until calls from before the loss have ended and are recorded again."""

        def are_over() -> bool:
            # The driver's journal has no end of a call during which the driver was killed.
            first, last = self.system.driver_started_at, lost_at + 2
            calls = self.system.driver.calls()
            return not any(first < c.started_at < last and c.ended_at is None for c in calls)

        wait_until(are_over, 30, "calls from before the loss are over")
        wait_until(self.system.is_whole, 90, "every attempt has an owner", interval_seconds=0.1)

    def feed(self, count: int) -> None:
        """Create some claims and delete some existing ones, in whatever state they are."""
        for _ in range(min(count, len(self.to_create))):
            name = self.to_create.pop()
            self.insist(lambda name=name: self.scene.claim(name, self.storage_class))
            self.alive.append(name)
        while self.alive and len(self.deleted) * CLAIMS < (CLAIMS - len(self.to_create)) * DELETES:
            self.delete_one()

    def delete_one(self) -> None:
        """Delete a claim. Recent claims are chosen twice as often, because they are in progress."""
        pick = self.random.randrange(len(self.alive))
        name = self.alive.pop(max(pick, self.random.randrange(len(self.alive))))
        self.insist(lambda: self.scene.delete(name))
        self.deleted.append(name)

    def doom(self, what: str) -> None:
        """Delete a claim during its provisioning, together with what its request was made of."""
        self.doomed += 1
        name = f"doomed-{self.doomed}"
        api, driver = self.system.api, self.system.driver.name
        scene = Scene(api) if what == "namespace" else self.scene
        secret = {"metadata": {"name": name, "namespace": scene.namespace}, "data": {}}
        parameters = {}
        if what == "secret":
            self.insist(lambda: api.create({"apiVersion": "v1", "kind": "Secret", **secret}))
            parameters = {
                "csi.storage.k8s.io/provisioner-secret-name": name,
                "csi.storage.k8s.io/provisioner-secret-namespace": scene.namespace,
            }
        own_class = self.insist(
            lambda: scene.storage_class(driver, f"{name}-{what}", parameters=parameters)
        )
        self.insist(lambda: scene.claim(name, own_class))
        if what == "namespace":
            self.insist(lambda: api.delete(f"/api/v1/namespaces/{scene.namespace}"))
            return
        path = f"/api/v1/namespaces/{scene.namespace}/secrets"
        if what == "secret":
            self.insist(lambda: api.delete(f"{path}/{name}"))
        self.insist(lambda: scene.delete_class(own_class))
        self.insist(lambda: scene.delete(name))
        if what == "secret":  # its chart creates it again; otherwise an operator would have to act
            self.insist(lambda: api.create({"apiVersion": "v1", "kind": "Secret", **secret}))

    def doom_grant(self) -> None:
        """Start a clone of another namespace's volume, then delete the grant and the rest."""
        self.doomed += 1
        name = f"doomed-{self.doomed}"
        api, other = self.system.api, Scene(self.system.api)
        self.others.append(other)
        own_class = self.insist(lambda: self.scene.storage_class(self.system.driver.name, name))
        self.insist(lambda: other.claim(name, own_class))
        wait_until(lambda: other.get(name)["status"]["phase"] == "Bound", 120, "a source")
        source = {"kind": "PersistentVolumeClaim", "name": name}
        grant = {
            "apiVersion": "gateway.networking.k8s.io/v1beta1",
            "kind": "ReferenceGrant",
            "metadata": {"name": name, "namespace": other.namespace},
            "spec": {
                "from": [{"group": "", "kind": source["kind"], "namespace": self.scene.namespace}],
                "to": [{"group": "", **source}],
            },
        }
        self.insist(lambda: api.create(grant))
        wanted = {**source, "apiGroup": "", "namespace": other.namespace}
        self.insist(lambda: self.scene.claim(name, own_class, dataSourceRef=wanted))
        calls = len(self.system.driver.calls("CreateVolume"))
        with suppress(TimeoutError):  # whether or not an attempt has begun
            wait_until(
                lambda: len(self.system.driver.calls("CreateVolume")) > calls,
                self.random.uniform(0, 5),
                "an attempt",
            )
        path = f"/apis/gateway.networking.k8s.io/v1beta1/namespaces/{other.namespace}"
        self.insist(lambda: api.delete(f"{path}/referencegrants/{name}"))
        self.insist(lambda: self.scene.delete(name))
        self.insist(lambda: other.delete(name))
        self.insist(lambda: self.scene.delete_class(own_class))

    fault_kinds: ClassVar[dict[str, Callable[[Any], object]]] = {
        **Faults.fault_kinds,
        "class deleted": lambda self: self.doom("class"),
        "secret deleted": lambda self: self.doom("secret"),
        "namespace deleted": lambda self: self.doom("namespace"),
    }
    if CLAIMS >= LONG:
        fault_kinds["grant deleted"] = lambda self: self.doom_grant()


class Stages:
    """The seconds after which each stage of the final wait was reached."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.seconds: dict[str, int] = {}

    def reach(self, stage: str) -> None:
        self.seconds[stage] = round(time.monotonic() - self.started)


@pytest.mark.timeout(3600)
def test_nothing_is_lost_and_nothing_is_left(own_plane, redis_binary, tmp_path, capsys):
    """MR-060, G1 to G9, I-6, I-7: C-056, C-057, C-147, C-148, C-149, C-150 in one run."""
    directory = Path(os.environ.get("CHAOS_KEEP", tmp_path)) / f"seed-{SEED}"
    with capsys.disabled():
        print(f"\nCHAOS_SEED={SEED} CHAOS_CLAIMS={CLAIMS} CHAOS_DELETES={DELETES} faults={FAULTS}")
    flags = ("--resync-period=10s",)
    worker_flags = (
        "--feature-gates=CrossNamespaceVolumeDataSource=true",
        "--timeout=5s",
        "--retry-interval-max=5s",
        *ELECTION,
    )
    with System(
        directory,
        own_plane,
        redis_binary,
        is_proxied=True,
        appendonly=True,
        controllers="provisioner,resizer",
        driver_arguments=DRIVER_ARGUMENTS,
        flags=flags,
        worker_flags=worker_flags,
    ) as system:
        scene = Scene(system.api)
        storage_class = scene.storage_class(system.driver.name, allowVolumeExpansion=True)
        chaos = Chaos(system, scene, storage_class, SEED)
        try:
            system.driver.set_capacity(total_bytes=CLAIMS * 2**40)  # space must not run out here
            system.driver.set_rules(
                *RULES,
                {"method": "*Volume", "delay_seconds": [0, 3]},
            )
            chaos.run()
            broken_for = time.monotonic() - chaos.started
            rested = Stages()
            wait_until(lambda: set(scene.claims()) == set(chaos.alive), SETTLE_SECONDS, "claims")
            rested.reach("claims are gone")
            scene.wait_bound(*chaos.alive, timeout_seconds=SETTLE_SECONDS)
            rested.reach("all are bound")
            # kube-controller-manager may have had no connection either when the last claims were
            # deleted.
            left = CLAIMS - DELETES
            wait_until(lambda: len(system.volumes()) == left, SETTLE_SECONDS, "volumes")
            rested.reach("volumes are gone")
            wait_until(chaos.changes.are_at_rest, SETTLE_SECONDS, "sizes and classes agree")
            rested.reach("changes are done")
            system.assert_at_rest(SETTLE_SECONDS)
            # The check of the last intent copy may have created one more volume, which is deleted
            # again.
            wait_until(lambda: len(system.volumes()) == left, SETTLE_SECONDS, "volumes")
            settled = time.monotonic() - chaos.started
            created = {call.request["name"] for call in system.driver.calls("CreateVolume")}
            figures = {
                "seconds of faults": round(broken_for),
                "seconds to rest after them": round(settled - broken_for),
                "of which until": rested.seconds,
                "CreateVolume calls": len(system.driver.calls("CreateVolume")),
                "distinct volume names": len(created),
                "DeleteVolume calls": len(system.driver.calls("DeleteVolume")),
                "expand calls": len(system.driver.calls(EXPAND)),
                "modify calls": len(system.driver.calls(MODIFY)),
                "overlaps": len(system.driver.concurrent_calls()),
            }
            with capsys.disabled():
                print(figures)
            assert len(system.volumes()) == len(chaos.alive) == left
            assert overlaps_without_fault(system, chaos.lease_ends) == []
            assert chaos.changes.second_targets() == []
            # Celery logs the second message if its event loop ended and the worker with it.
            assert system.log_lines("unexpected error", "Unrecoverable error") == []
        except BaseException:
            print("faults:", chaos.faults)
            print("left:", system.queue_left()[:20], system.copies())
            print("\n".join(system.stories(set(system.driver.volumes()) - system.handles())))
            print(*system.queue_state(), sep="\n")
            raise
        finally:
            for one in (scene, *chaos.others):
                one.clean_up()
            chaos.changes.clean_up()
