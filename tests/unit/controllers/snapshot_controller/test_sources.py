"""A source claim's finalizer does not outlive the last snapshot that needs it (SNQ-013)."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from tests.support.fake_context import Death
from tests.support.snapshot_world import SnapshotWorld, finalizers
from workers import constants as k
from workers.controllers.snapshot_controller.keys import snapshot_key, source_key
from workers.controllers.snapshot_controller.rules import SnapshotControllerRules
from workers.controllers.snapshot_controller.spec import SPEC
from workers.errors import LeaseLost
from workers.kube import paths
from workers.queue.keys import Key
from workers.queue.locks import Mode
from workers.spec import Forget

HELD = [k.FINALIZER_CLAIM_AS_SOURCE]
TYPES = {watch.resource: watch.item_type for watch in SPEC.watches}


class Watched(SnapshotWorld):
    """Reconciles each key that the watcher's rules return for the objects that changed."""

    def __init__(self, *, phase: str = "Bound") -> None:
        super().__init__()
        self.rules = SnapshotControllerRules()
        self.known: dict[str, tuple] = {}
        self.pending: list[Key] = []
        self.later: list[Key] = []
        self.add_volume()
        self.add_claim(phase=phase)

    def look(self) -> None:
        """Handle the events since the last call."""
        now = {
            path: (resource, msgspec.convert(item, TYPES[resource]), item)
            for path, item in self.api.objects.items()
            for resource in TYPES
            if item["kind"] == resource.kind
        }
        told = []
        for path, (resource, item, _) in self.known.items():
            if path not in now:
                told += self.rules.gone(resource, item)
        for path, (resource, item, body) in now.items():
            if path not in self.known or self.known[path][2] != body:
                told += self.rules.seen(resource, item, is_listed=False)
        self.known = now
        for one in told:
            if not isinstance(one, Forget) and one not in self.pending:
                self.pending.append(one)

    def settle(self) -> None:
        """Reconcile all keys that have work; keys that must wait are kept for the next call."""
        self.look()
        self.pending += [key for key in self.later if key not in self.pending]
        self.later = []
        while self.pending:
            key = self.pending.pop(0)
            try:
                if self.run_snapshot(key).action.value != "done":
                    self.later.append(key)
            except Death:
                self.steps.dies_before = None
                self.later.append(key)
            self.look()

    def sidecar(self) -> None:
        """Make the contents ready, or delete them."""
        for path, item in list(self.api.objects.items()):
            if item["kind"] != "VolumeSnapshotContent":
                continue
            if "deletionTimestamp" in item["metadata"]:
                del self.api.objects[path]
            else:
                status = {"snapshotHandle": item["metadata"]["name"], "readyToUse": True}
                name = item["metadata"]["name"]
                self.api.change(paths.SNAPSHOT_CONTENTS, name, {"status": status})

    def wipe(self) -> None:
        """Empty Redis; the watcher adds all keys that wait."""
        self.look()
        self.later = []
        self.pending = list(self.rules.all_keys())

    def two(self) -> None:
        """Add two snapshots of the claim."""
        for number in (1, 2):
            self.add_snapshot(metadata={"name": f"s{number}", "uid": f"u{number}"})

    def drop_contents(self) -> None:
        """Remove the contents by force; their snapshots still count as begun."""
        for path, item in list(self.api.objects.items()):
            if item["kind"] == "VolumeSnapshotContent":
                del self.api.objects[path]

    def drop_all(self) -> None:
        """Delete both snapshots and the claim."""
        for number in (1, 2):
            if self.snapshot(f"s{number}") is not None:
                self.api.mark_deleted(paths.SNAPSHOTS, f"s{number}", "ns")
        if self.claim() is not None:
            self.api.mark_deleted(paths.CLAIMS, "p", "ns")


@pytest.mark.parametrize(
    ("phase", "is_wiped", "is_cut", "step"),
    list(itertools.product(["Bound", "Pending"], [False, True], [False, True], range(0, 22, 3))),
)
def test_whatever_dies_the_claim_goes(phase, is_wiped, is_cut, step):
    """SNC-062: A reconcile dies before any of its steps, and Redis may lose its key."""
    world = Watched(phase=phase)
    world.two()
    world.steps.dies_before = step
    world.settle()
    if is_wiped:
        world.wipe()
    if is_cut:
        world.sidecar()
    world.settle()
    world.drop_all()
    for _ in range(4):
        world.settle()
        world.sidecar()
        if is_wiped and world.steps.dies_before is None:
            world.wipe()
    world.settle()
    assert world.claim() is None
    assert [world.snapshot(name) for name in ("s1", "s2")] == [None, None]


def test_two_that_go_side_by_side():
    """SND-018: Each one counts the other; the deletion of the last one adds their claim's key."""
    world = Watched()
    world.two()
    world.settle()
    assert finalizers(world.claim()) == ["pvc-as-source-protection"]
    world.drop_all()
    world.drop_contents()
    world.api.before(
        "patch", "volumesnapshots/s1", lambda: world.run_snapshot(snapshot_key("ns", "s2"))
    )
    world.run_snapshot(snapshot_key("ns", "s1"))
    assert world.snapshot("s1") is world.snapshot("s2") is None
    assert finalizers(world.claim()) == ["pvc-as-source-protection"]
    world.settle()
    assert world.claim() is None


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_late_write_adds_it_when_the_snapshot_is_gone(is_deleted):
    """SNT-098: A frozen worker wrote it, or a request that timed out was executed anyway."""
    world = Watched(phase="Pending")
    world.settle()
    world.api.change(paths.CLAIMS, "p", {"metadata": {"finalizers": HELD}}, "ns")
    if is_deleted:
        world.api.mark_deleted(paths.CLAIMS, "p", "ns")
        world.settle()
        assert world.claim() is None
    else:  # harmless while the claim is not deleted: the next resync finds it
        world.settle()
        assert finalizers(world.claim()) == ["pvc-as-source-protection"]
        world.wipe()
        world.settle()
        assert finalizers(world.claim()) == []


def test_a_snapshot_that_somebody_else_keeps():
    """SNC-061: It counts until it is gone, although csi-fleet has no finalizer left on it."""
    world = Watched()
    world.two()
    change = {"metadata": {"finalizers": ["example.org/other"]}}
    world.api.change(paths.SNAPSHOTS, "s1", change, "ns")
    world.settle()
    world.drop_all()
    world.drop_contents()
    world.settle()
    assert world.snapshot("s2") is None
    assert finalizers(world.snapshot("s1")) == ["other"]
    assert finalizers(world.claim()) == ["pvc-as-source-protection"]
    world.api.drop(paths.SNAPSHOTS, "s1", "ns")
    world.settle()
    assert world.claim() is None


def test_a_claim_that_could_not_be_freed_when_its_snapshot_was_ready():
    """SNC-020 row 1: The snapshot is not reconciled again. The claim's deletion adds its key."""
    world = Watched()
    world.add_snapshot(metadata={"name": "s1", "uid": "u1"})
    world.settle()
    world.sidecar()
    world.steps.dies_before = len(world.steps.reached) + 1  # only the status is written
    world.settle()
    world.wipe()
    world.pending = []
    world.api.mark_deleted(paths.CLAIMS, "p", "ns")
    world.settle()
    assert world.claim() is None
    assert world.snapshot("s1")["status"]["readyToUse"]


def test_the_claim_is_left_to_a_snapshot_that_needs_it():
    """SNC-061, SNQ-003: A lock on the claim is respected too."""
    world = Watched()
    world.add_snapshot(metadata={"name": "s1", "uid": "u1"})
    world.settle()
    assert world.run_snapshot(source_key("ns/p")).reason == "a snapshot needs it"
    assert finalizers(world.claim()) == ["pvc-as-source-protection"]
    world.queue.busy["pvc:ns/p"] = Mode.EXCLUSIVE
    assert world.run_snapshot(source_key("ns/p")).action.value == "blocked"
    assert world.run_snapshot(source_key("ns/other")).action.value == "done"


class Disorder(Watched):
    """Users, deaths, lost leases, late writes and wipes happen in random order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        super().__init__(phase=self.random.choice(["Bound", "Pending"]))
        self.made = 0

    def cut(self) -> None:
        if self.claim() is not None:
            self.made += 1
            self.add_snapshot(metadata={"name": f"s{self.made}", "uid": f"u{self.made}"})

    def drop(self) -> None:
        if living := [one for one in self.snapshots() if "deletionTimestamp" not in one]:
            self.api.mark_deleted(paths.SNAPSHOTS, self.random.choice(living)["name"], "ns")

    def snapshots(self) -> list[dict]:
        """Return their metadata."""
        items = self.api.objects.values()
        return [one["metadata"] for one in items if one["kind"] == "VolumeSnapshot"]

    def drop_claim(self) -> None:
        if self.random.random() < 0.15 and self.claim() is not None:
            self.api.mark_deleted(paths.CLAIMS, "p", "ns")

    def write_late(self) -> None:
        claim = self.claim()
        if claim is not None and "deletionTimestamp" not in claim["metadata"]:
            self.api.change(paths.CLAIMS, "p", {"metadata": {"finalizers": HELD}}, "ns")

    def work(self) -> None:
        """Reconcile a random key once; the reconcile often fails or dies."""
        self.look()
        self.pending += [key for key in self.later if key not in self.pending]
        self.later = []
        if not self.pending:
            return
        key = self.pending.pop(self.random.randrange(len(self.pending)))
        step, fate = len(self.steps.reached) + self.random.randrange(4), self.random.random()
        self.steps.dies_before = step if fate < 0.3 else None
        self.steps.loses_before = step if fate > 0.8 else None
        try:
            if self.run_snapshot(key).action.value != "done":
                self.later.append(key)
        except (Death, LeaseLost):
            self.later.append(key)
        finally:
            self.steps.dies_before = self.steps.loses_before = None

    def run(self) -> None:
        """Run random events."""
        few = (self.write_late, self.wipe, self.sidecar, self.drop_claim)
        often = (self.cut, self.drop, *[self.work] * 5)
        for _ in range(40):
            self.random.choice((*few, *often, *often))()

    def rest(self) -> None:
        """Let the resync run until no work is left."""
        for _ in range(6):
            self.settle()
            self.sidecar()
            self.look()
            self.pending += [key for key in self.rules.all_keys() if key not in self.pending]
        self.settle()


@pytest.mark.parametrize("seed", range(24))
def test_at_rest_a_claim_is_held_only_by_who_needs_it(seed):
    """SNC-061, SNT-096, SND-018: No object that is being deleted is left."""
    world = Disorder(seed)
    world.run()
    if world.claim() is not None and "deletionTimestamp" not in world.claim()["metadata"]:
        world.api.change(paths.CLAIMS, "p", {"status": {"phase": "Bound"}}, "ns")
    world.rest()
    unready = [
        one["name"]
        for one in world.snapshots()
        if not (world.snapshot(one["name"]).get("status") or {}).get("readyToUse")
    ]
    assert world.claim() is None or unready or finalizers(world.claim()) == []
    for one in world.snapshots():
        world.api.mark_deleted(paths.SNAPSHOTS, one["name"], "ns")
    if world.claim() is not None:
        world.api.mark_deleted(paths.CLAIMS, "p", "ns")
    world.rest()
    assert (world.claim(), world.snapshots()) == (None, [])


@pytest.mark.parametrize("found", [None, [], ["other"]], ids=["gone", "free", "others hold it"])
def test_a_claim_without_our_finalizer_costs_no_lock_and_no_list(found):
    """SNC-062: This holds whatever snapshots the claim has."""
    world = SnapshotWorld()
    world.add_snapshot()
    if found is not None:
        world.add_claim(finalizers=found)
    assert world.run_snapshot(source_key("ns/p")).reason == "released"
    assert world.queue.acquired == []
    assert [one.path for one in world.api.requests] == ["namespaces/ns/persistentvolumeclaims/p"]
