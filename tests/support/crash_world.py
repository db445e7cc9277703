"""A claim's whole life with a real Redis queue, and processes that die before a chosen effect.

The API server, the driver and the cluster (binding, releasing, scheduling) are fakes in memory. The
queue, leases, intents and recovery are real and use a simulated clock. A process dies by raising
`Death`, a BaseException, so that no handler of the product catches it; its lease then expires as
after SIGKILL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, cast

import redis

from csi_client import messages as csi
from csi_client.errors import CsiError
from tests.support.fake_cluster import (
    DRIVER,
    FakeEvents,
    FakeKube,
    JsonObject,
    default_answer,
)
from tests.support.queue_state import is_left
from watcher.intents import restore_intents
from workers.config.settings import Settings
from workers.constants import (
    ANN_SELECTED_NODE,
    ANN_STORAGE_PROVISIONER,
    FINALIZER_SNAPSHOT_SOURCE,
    FINALIZER_VOLUME,
)
from workers.controllers.provisioner.clusters import Clusters
from workers.controllers.provisioner.controller import CONTROLLER
from workers.controllers.provisioner.filters import keys_of_unsaved
from workers.controllers.provisioner.own import Own
from workers.controllers.provisioner.safekeeping import Safekeeping
from workers.controllers.provisioner.served import Drivers
from workers.drivers.driver import Driver
from workers.engine.context import Runtime
from workers.engine.effects import Effects
from workers.engine.frame import run
from workers.engine.steps import LeasedSteps
from workers.kube.errors import NotFoundError
from workers.queue.catalog import CatalogReader, CatalogWriter
from workers.queue.intents import IntentStore
from workers.queue.keys import Key, claim_key, lane_name, volume_key
from workers.queue.leases import Lease
from workers.queue.names import CELERY_QUEUE_PREFIX, PREFIX
from workers.queue.recovery import Recovery
from workers.queue.workqueue import WorkQueue

CONTROLLERS = {kind.name: CONTROLLER for kind in CONTROLLER.spec.kinds}
NAMESPACE = "fleet-system"
ZONE = "topology.example.org/zone"
CLAIM = ("persistentvolumeclaims", "default", "data")
UID = "u1"
VOLUME = f"pvc-{UID}"


class Death(BaseException):
    """Ends the simulated process."""


class SnapshotKube(FakeKube):
    """A fake API server with snapshots and a list of ConfigMaps."""

    def get_snapshot(self, namespace: str, name: str) -> JsonObject:
        return self._get("volumesnapshots", namespace, name, "get_snapshot")

    def update_snapshot(self, snapshot: JsonObject) -> JsonObject:
        return self._update("volumesnapshots", snapshot, "update_snapshot")

    def get_snapshot_content(self, name: str) -> JsonObject:
        return self._get("volumesnapshotcontents", "", name, "get_snapshot_content")

    def list_config_maps(self, namespace: str, selector: str) -> Iterator[JsonObject]:
        for item in self.kind("configmaps").values():
            if selector in (item["metadata"].get("labels") or {}):
                yield deepcopy(item)

    def has_config_map(self, namespace: str, name: str) -> bool:
        return ("configmaps", namespace, name) in self.objects


class FakeStorage:
    """A driver that is idempotent by name and by id; each CreateVolume call uses the next plan.

    A plan is one of these: None (behave), a CsiError (fail without creating a volume), ("after",
    CsiError) (create the volume but lose the answer), "slow" (longer than 2 s), or a change to the
    answer.
    """

    def __init__(self) -> None:
        self.volumes: dict[str, str] = {}
        self.plans: list[Any] = []
        self.made = 0
        self.calls: list[str] = []

    def create_volume(
        self,
        request: csi.CreateVolumeRequest,
        *,
        on_slow: Callable[[], None] | None = None,
        timeout_seconds: float | None = None,
    ) -> csi.CreateVolumeResponse:
        plan = self.plans.pop(0) if self.plans else None
        self.calls.append("create")
        if isinstance(plan, CsiError):
            raise plan
        if request.name not in self.volumes:
            self.made += 1
            self.volumes[request.name] = f"id-{self.made}"
        if plan == "slow" and on_slow is not None:
            on_slow()
        if isinstance(plan, tuple):
            raise plan[1]
        answer = default_answer(request)
        answer.volume.volume_id = self.volumes[request.name]
        if callable(plan):
            plan(answer)
        return answer

    def delete_volume(self, volume_id: str, secrets: Any, *, timeout_seconds: float = 0) -> None:
        self.calls.append("delete")
        for name in [name for name, known in self.volumes.items() if known == volume_id]:
            del self.volumes[name]


class Mortal(LeasedSteps):
    """Kills the process before the n-th effect; counts and names all effects."""

    def __init__(self, dies_before: int | None, on_death: Callable[[str], None]) -> None:
        self.reached: list[str] = []
        self._dies_before = dies_before
        self._on_death = on_death

    def reach(self, step: str, lease: Lease) -> None:
        if len(self.reached) == self._dies_before:
            self._on_death(step)
            raise Death(step)
        self.reached.append(step)
        super().reach(step, lease)


@dataclass
class Owner:
    """One worker process."""

    queue: WorkQueue
    runtime: Runtime
    steps: Mortal
    is_dead: bool = False


@dataclass
class CrashWorld:
    """The cluster around one claim; `live` advances the time until no work is left."""

    client: redis.Redis
    has_topology: bool = False
    reclaim_policy: str = "Delete"
    now_ms: int = 1_700_000_000_000
    messages: list[str] = field(default_factory=list)
    died_at: str | None = None

    def __post_init__(self) -> None:
        self.kube, self.storage, self.events = SnapshotKube(), FakeStorage(), FakeEvents()
        # The slow retry (P-414) uses the real clock, so its delay has to be short.
        provision = replace(Settings().provision, retry_interval_max_seconds=0.01)
        self.settings = replace(Settings(), provision=provision)
        plugin = {"CONTROLLER_SERVICE"}
        if self.has_topology:
            plugin.add("VOLUME_ACCESSIBILITY_CONSTRAINTS")
        self.driver = Driver(
            name=DRIVER,
            queue_name=DRIVER,
            client=cast("Any", self.storage),
            plugin_capabilities=frozenset(plugin),
            controller_capabilities=frozenset({"CREATE_DELETE_VOLUME", "CREATE_DELETE_SNAPSHOT"}),
            in_tree_name=None,
            identity="test",
            settings=self.settings,
        )
        mode = "WaitForFirstConsumer" if self.has_topology else "Immediate"
        self.storage_class = self.kube.add(
            "storageclasses.storage.k8s.io",
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": "fast"},
                "provisioner": DRIVER,
                "reclaimPolicy": self.reclaim_policy,
                "volumeBindingMode": mode,
            },
        )
        self.catalog_writer = CatalogWriter(self.client, now_ms=lambda: self.now_ms)
        self.fill_catalog()
        self.seen_epoch = self.catalog_writer.epoch()

    # Actions of users, operators and other programs.

    def add_claim(self, **spec: Any) -> None:
        annotations = {ANN_STORAGE_PROVISIONER: DRIVER}
        if self.has_topology:
            annotations[ANN_SELECTED_NODE] = "n1"
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "data",
                "namespace": "default",
                "uid": UID,
                "annotations": annotations,
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "fast",
                "resources": {"requests": {"storage": "1Ki"}},
                **spec,
            },
            "status": {"phase": "Pending"},
        }
        self.kube.add("persistentvolumeclaims", body)

    def relabel_while_saving(self) -> None:
        """PVs follow a label of their claims, and the claim gets it just before its PV is saved."""
        provision = replace(self.settings.provision, claim_labels_to_pv=("team",))
        self.driver = replace(self.driver, settings=replace(self.settings, provision=provision))

        def relabel() -> None:
            if CLAIM in self.kube.objects:
                self.kube.objects[CLAIM]["metadata"]["labels"] = {"team": "red"}

        self.kube.before["create_volume"] = relabel

    def add_snapshot(self) -> None:
        self.kube.add(
            "volumesnapshots",
            {
                "metadata": {"name": "snap", "namespace": "default", "uid": "s1"},
                "spec": {"source": {}, "volumeSnapshotClassName": "c"},
                "status": {
                    "readyToUse": True,
                    "boundVolumeSnapshotContentName": "content",
                    "restoreSize": "1Ki",
                },
            },
        )
        self.kube.add(
            "volumesnapshotcontents",
            {
                "metadata": {"name": "content"},
                "spec": {
                    "driver": DRIVER,
                    "volumeSnapshotRef": {"name": "snap", "namespace": "default", "uid": "s1"},
                    "source": {},
                },
                "status": {"snapshotHandle": "snap-1", "readyToUse": True, "restoreSize": 1024},
            },
        )

    def delete_claim(self) -> None:
        """Delete the claim; the watcher adds its key once more (M-012)."""
        if CLAIM in self.kube.objects:
            self.kube.drop(CLAIM[0], CLAIM[2], CLAIM[1])
            self.watcher_queue().add([claim_key(DRIVER, "default", "data", UID)])

    def wipe(self) -> None:
        """Let Redis lose all its data (FLUSHALL)."""
        self.client.flushall()
        self.messages.clear()

    def hide_class(self) -> None:
        """Remove the class, as if the driver's chart were uninstalled."""
        self.kube.drop("storageclasses.storage.k8s.io", "fast")
        self.catalog_writer.replace("classes", [], "2")

    def show_class(self) -> None:
        """Restore the class, as if the driver's chart were installed again."""
        self.kube.add("storageclasses.storage.k8s.io", self.storage_class)
        self.fill_catalog()

    def fill_catalog(self) -> None:
        writer = self.catalog_writer
        epoch = writer.epoch()
        classes = [("fast", "1", self.storage_class)]
        nodes = [("n1", "1", {ZONE: "z1"})] if self.has_topology else []
        keys = [("n1", "1", {DRIVER: [ZONE]})] if self.has_topology else []
        for kind, items in (("classes", classes), ("nodes", nodes), ("csinodes", keys)):
            writer.replace(kind, items, "1")
        writer.replace("attachments", [], "1")
        writer.mark_complete(["classes", "nodes", "csinodes", "attachments"], epoch)

    def cluster(self) -> None:
        """Do the work of kube-controller-manager and the scheduler."""
        claim = self.kube.objects.get(CLAIM)
        for name, volume in self.kube.kind("persistentvolumes").items():
            volume["status"] = {"phase": "Bound" if claim is not None else "Released"}
            if claim is not None:
                claim["spec"]["volumeName"], claim["status"] = name, {"phase": "Bound"}
        if claim is not None and self.has_topology and not claim["spec"].get("volumeName"):
            claim["metadata"]["annotations"].setdefault(ANN_SELECTED_NODE, "n1")

    def watcher(self) -> None:
        """Add the keys of undecided objects; after Redis has lost its data, also those of the
        ConfigMaps."""
        queue = self.watcher_queue()
        claim = self.kube.objects.get(CLAIM)
        is_unbound = claim is not None and not claim["spec"].get("volumeName")
        if is_unbound or (claim is not None and self.has_other_labels(claim)):
            queue.ensure([claim_key(DRIVER, "default", "data", UID)])
        for name, volume in self.kube.kind("persistentvolumes").items():
            if self.is_undecided(volume):
                queue.ensure([volume_key(DRIVER, name)])
        if self.catalog_writer.epoch() != self.seen_epoch:
            self.fill_catalog()
            self.seen_epoch = self.catalog_writer.epoch()
            self.recover()

    def has_other_labels(self, claim: JsonObject) -> bool:
        """Whether the PV of a bound claim has to get its labels."""
        volume = self.kube.objects.get(("persistentvolumes", "", claim["spec"]["volumeName"]))
        keys = self.driver.settings.provision.claim_labels_to_pv
        return volume is not None and any(
            (claim["metadata"].get("labels") or {}).get(key)
            != (volume["metadata"].get("labels") or {}).get(key)
            for key in keys
        )

    def is_undecided(self, volume: JsonObject) -> bool:
        """Return True if a volume must be deleted or must lose its finalizer."""
        if volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain":
            return FINALIZER_VOLUME in volume["metadata"]["finalizers"]
        return bool((volume.get("status") or {}).get("phase") == "Released")

    def recover(self) -> None:
        """Run the watcher's check that happens once a minute."""
        queue, intents = self.watcher_queue(), IntentStore(self.client)
        self.client.delete(f"{PREFIX}period:recovery")  # its period uses the real clock
        assert Recovery(self.client, queue).run(self.keys_of_unsaved)
        self.client.delete(f"{PREFIX}period:recovery")
        kube = cast("Any", self.kube)
        queue.add(restore_intents(kube, NAMESPACE, intents, {DRIVER}))

    def keys_of_unsaved(self, volume: JsonObject) -> list[Key]:
        """Return the keys that the watcher's rules name."""
        record = {"name": DRIVER, "queue_name": DRIVER}
        return keys_of_unsaved(volume, Drivers.of_records([record]))

    def watcher_queue(self) -> WorkQueue:
        return WorkQueue(self.client, publish=self.messages.extend, now_ms=lambda: self.now_ms)

    # The simulated processes.

    def owner(self, dies_before: int | None = None) -> Owner:
        queue = WorkQueue(
            self.client,
            publish=self.messages.extend,
            clock=lambda: self.now_ms / 1000,
            now_ms=lambda: self.now_ms,
        )
        queue.register_process()
        for kind in ("claims", "volumes"):
            queue.set_limits(lane_name(kind, DRIVER), 10)
        intents, catalog = IntentStore(self.client, driver=DRIVER), CatalogReader(self.client)
        steps = Mortal(dies_before, self._died)
        kube = cast("Any", self.kube)
        keeping = Safekeeping(intents=intents, kube=kube, catalog=catalog, namespace=NAMESPACE)
        own = Own(intents, keeping, Clusters(catalog))
        runtime = Runtime(
            settings=self.settings,
            kube=kube,
            effects=Effects(kube, cast("Any", self.events), queue, steps),
            queue=queue,
            catalog=catalog,
            parts={CONTROLLER.spec.name: own},
            driver_of=lambda _name: self.driver,
        )
        return Owner(queue, runtime, steps)

    def live(self, owner: Owner, *, seconds: float = 1200, passes: int = 10**6) -> None:
        """Advance the time until no work is left, the owner is dead, or `passes` reconciles have
        run."""
        end = self.now_ms + seconds * 1000
        quiet = 0
        while self.now_ms < end and quiet < 3:
            self.cluster()
            self.watcher()
            owner.queue.heartbeat()
            owner.queue.pump(period_seconds=0)
            if self.messages:
                quiet = 0
            while self.messages:
                self._work(owner, self.messages.pop(0))
                passes -= 1
                if owner.is_dead or not passes:
                    return
            if not self.waiting():
                self.recover()
                quiet = 0 if self.messages else quiet + 1
            self.now_ms += 1000
        assert quiet >= 3, f"still busy: {self.waiting()}"

    def waiting(self) -> list[str]:
        """Return the entries of the queue."""
        return [
            *self.client.hkeys(f"{PREFIX}leases"),
            *self.client.hkeys(f"{PREFIX}since"),
            *self.client.zrange(f"{PREFIX}delayed", 0, -1),
        ]

    def pass_away(self) -> None:
        """Advance the time until the dead process's lease has expired."""
        self.messages.clear()
        for flag in self.client.scan_iter(f"{PREFIX}woken:*"):
            self.client.delete(flag)  # this time is measured by this machine's clock
        self.now_ms += 5000

    def _work(self, owner: Owner, name: str) -> None:
        try:
            run(owner.runtime, CONTROLLERS, name.removeprefix(CELERY_QUEUE_PREFIX))
        except Death:
            owner.is_dead = True

    def _died(self, step: str) -> None:
        self.died_at = step

    # Conditions that must hold.

    def left_in_redis(self) -> list[str]:
        """Return the Redis keys that are neither settings, catalog nor budgets (I-2 to I-5)."""
        names = [raw.decode() for raw in self.client.scan_iter(f"{PREFIX}*")]
        return sorted(name for name in names if is_left(name))

    def finalizers_of_snapshot(self) -> list[str]:
        try:
            found = self.kube.get_snapshot("default", "snap")
        except NotFoundError:
            return []
        return [
            one
            for one in found["metadata"].get("finalizers") or []
            if one == FINALIZER_SNAPSHOT_SOURCE
        ]
