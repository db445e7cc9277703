"""The ways in which volumes can leak, as stories for any provisioner: what happens, to how many
claims.

Numbers are issues of kubernetes-csi/external-provisioner. `tests/bench/leaks.py` plays each story
with csi-fleet and with csi-provisioner, and counts the volumes that remain in the storage; the
tests of `tests/chaos/test_leaks.py` check the same cases one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.support.chaos import System
from tests.support.fleet import Scene
from tests.support.kube_api import JsonObject
from tests.support.refusal import volumes_refused
from tests.support.snapshots import GROUP, add_snapshot, make_snapshot
from tests.support.waiting import wait_until

SECONDS = 60
QUIET_SECONDS = 12.0
LOST_ANSWER = {"method": "CreateVolume", "code": "DEADLINE_EXCEEDED", "after_work": True}


@dataclass(slots=True)
class Told:
    """The setting of one story: the provisioner under test, a namespace, its class and its
    claims."""

    system: System
    scene: Scene
    storage_class: str
    count: int

    def claims(self, **body: Any) -> list[JsonObject]:
        names = [f"claim-{index}" for index in range(self.count)]
        return [self.scene.claim(name, self.storage_class, **body) for name in names]

    def wait_called(self, claims: Iterable[JsonObject]) -> None:
        """Wait until the driver was called for each claim."""
        names = {f"pvc-{claim['metadata']['uid']}" for claim in claims}

        def asked() -> bool:
            calls = self.system.driver.calls("CreateVolume")
            return names <= {str(call.request["name"]) for call in calls}

        wait_until(asked, SECONDS, "the driver is asked for every claim")

    def kill(self) -> None:
        """Kill all workers at once; they stay down until `bring_back`."""
        for name in self.system.workers_():
            self.system.parts[name].wanted = False
        for name in self.system.workers_():
            self.system.kill(name)

    def bring_back(self) -> None:
        for name in self.system.workers_():
            self.system.parts[name].wanted = True

    def delete(self, claims: Iterable[JsonObject]) -> None:
        for claim in claims:
            self.scene.delete(claim["metadata"]["name"])
        names = {claim["metadata"]["name"] for claim in claims}
        wait_until(lambda: not names & set(self.scene.claims()), SECONDS, "the claims are gone")


def answers_lost(told: Told) -> None:
    told.system.driver.set_rules({**LOST_ANSWER, "times": 2 * told.count})
    claims = told.claims()
    told.wait_called(claims)
    told.delete(claims)


def answers_lost_and_restart(told: Told) -> None:
    told.system.driver.set_rules({**LOST_ANSWER, "times": 2 * told.count})
    claims = told.claims()
    told.wait_called(claims)
    told.kill()
    told.delete(claims)
    told.bring_back()


def dies_during_create(told: Told) -> None:
    rule = {"method": "CreateVolume", "delay_seconds": 3, "times": told.count}
    told.system.driver.set_rules(rule)
    claims = told.claims()
    told.wait_called(claims)
    told.kill()
    told.delete(claims)
    told.bring_back()


def dies_before_the_save(told: Told) -> None:
    system = told.system
    with volumes_refused(system.api, system.driver.name):
        claims = told.claims()
        wait_until(lambda: len(system.driver.volumes()) >= told.count, SECONDS, "volumes are made")
        told.kill()
        told.delete(claims)
    told.bring_back()


def source_goes_during_a_restore(told: Told) -> None:
    system, scene = told.system, told.scene
    origin = scene.claim("origin", told.storage_class)
    scene.wait_bound("origin")
    volume = scene.volume_of(origin) or {}
    snapshot_id = make_snapshot(system.driver, volume["spec"]["csi"]["volumeHandle"])
    path = add_snapshot(scene, system.driver, snapshot_id)
    system.driver.set_rules({**LOST_ANSWER, "times": 2 * told.count})
    source = {"apiGroup": GROUP, "kind": "VolumeSnapshot", "name": "snap"}
    claims = told.claims(dataSource=source)
    told.wait_called(claims)
    scene.api.delete(path)
    told.delete([*claims, origin])


def deleted_as_soon_as_provisioned(told: Told) -> None:
    waiting = {claim["metadata"]["name"]: claim for claim in told.claims()}

    def all_deleted() -> bool:
        for name, claim in list(waiting.items()):
            if told.scene.volume_of(claim):
                told.scene.delete(name)
                del waiting[name]
        return not waiting

    wait_until(all_deleted, SECONDS, "all provisioned and deleted", interval_seconds=0.01)


STORIES: dict[str, tuple[int, Callable[[Told], None]]] = {
    "131, 311: answers to CreateVolume are lost, the claim is deleted": (10, answers_lost),
    "the same, and the process restarts": (10, answers_lost_and_restart),
    "486: the process dies during CreateVolume, the claim is deleted": (10, dies_during_create),
    "486: the process dies before the PV is saved, the claim is deleted": (
        10,
        dies_before_the_save,
    ),
    "1449: source snapshot and claim are deleted during the restore": (
        10,
        source_goes_during_a_restore,
    ),
    "1469: the claim is deleted as soon as it is provisioned": (
        50,
        deleted_as_soon_as_provisioned,
    ),
}


def tell(system: System, title: str) -> tuple[int, int]:
    """Play one story until nothing changes any more; return leaked volumes and claims."""
    count, play = STORIES[title]
    system.driver.set_rules()
    before = set(system.driver.volumes())
    scene = Scene(system.api)
    try:
        play(Told(system, scene, scene.storage_class(system.driver.name), count))
        wait_quiet(system, scene)
        return len(set(system.driver.volumes()) - before - system.handles()), count
    finally:
        system.driver.set_rules()
        scene.clean_up()


def wait_quiet(system: System, scene: Scene) -> None:
    """Wait until claims and PVs are gone and the driver has not been called for a while."""
    wait_until(lambda: not scene.claims() and not scene.volumes(), 90, "claims and volumes go")

    def is_quiet() -> bool:
        calls = [call for call in system.driver.calls() if call.method.endswith("Volume")]
        return time.time() - max(call.started_at for call in calls) > QUIET_SECONDS

    wait_until(is_quiet, 90, "the driver is left alone")
