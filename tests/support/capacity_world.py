"""Capacity publishing with a real Redis, and with an API server and a driver in memory.

`settle()` does what workers do: it takes every due key, reconciles it, and releases it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import redis

from csi_client import answers as checks
from csi_client import messages as csi
from tests.support.fake_cluster import DRIVER, FakeClusters, FakeKube, JsonObject, World
from tests.support.taking import due_keys
from workers.config.settings import CapacitySettings, KubeSettings, Settings
from workers.controllers.capacity.publishing import Publishing
from workers.controllers.capacity.spec import SPEC
from workers.controllers.capacity.sync import sync_capacity
from workers.engine.effects import Effects
from workers.engine.outcome import Action
from workers.kube.errors import AlreadyExistsError, ConflictError
from workers.kube.paths import Resource
from workers.queue.capacities import CapacityStore
from workers.queue.keys import Key, capacity_key
from workers.queue.periods import Periods
from workers.queue.workqueue import WorkQueue
from workers.topology.cluster import ClusterTopology

NAMESPACE = "storage"
CAPACITIES = "csistoragecapacities"
ZONE = "zone"


class ObjectsKube(FakeKube):
    """An API server in memory that accepts the calls for any kind."""

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> JsonObject:
        return self._get(resource.plural, namespace, name, f"get_{resource.plural}")

    def list(
        self, resource: Resource, *, namespace: str = "", **query: str
    ) -> Iterator[JsonObject]:
        self._reach(f"list_{resource.plural}", "")
        pairs = [one.split("=", 1) for one in query.get("labelSelector", "").split(",") if one]
        for (kind, place, _), item in sorted(self.objects.items()):
            labels = item["metadata"].get("labels") or {}
            is_listed = kind == resource.plural and namespace in {"", place}
            if is_listed and all(labels.get(name) == value for name, value in pairs):
                yield deepcopy(item)

    def create(self, resource: Resource, item: Mapping[str, Any]) -> JsonObject:
        name = item["metadata"]["name"]
        self._reach(f"create_{resource.plural}", name)
        if self._place(resource.plural, item) in self.objects:
            raise AlreadyExistsError(409, "AlreadyExists", f"{name} already exists")
        self.writes.append(("create", name))
        return self.add(resource.plural, item)

    def update(self, resource: Resource, item: Mapping[str, Any]) -> JsonObject:
        return self._update(resource.plural, dict(item), f"update_{resource.plural}")

    def delete(
        self, resource: Resource, name: str, *, namespace: str = "", uid: str | None = None
    ) -> JsonObject:
        found = self._get(resource.plural, namespace, name, f"delete_{resource.plural}")
        if uid is not None and found["metadata"]["uid"] != uid:
            raise ConflictError(409, "Conflict", "the UID in the precondition does not match")
        self.writes.append(("delete", name))
        self.drop(resource.plural, name, namespace)
        return found


class CapacityClient:
    """Answers GetCapacity with `free` by zone ("" without zones), or with the next planned
    error."""

    def __init__(self) -> None:
        self.free: dict[str, int] = {}
        self.maximum: int | None = None
        self.errors: list[Exception] = []
        self.requests: list[csi.GetCapacityRequest] = []
        self.during: Callable[[], None] = lambda: None

    def get_capacity(self, request: csi.GetCapacityRequest) -> csi.GetCapacityResponse:
        self.requests.append(request)
        self.during()
        if self.errors:
            raise self.errors.pop(0)
        zone = request.accessible_topology.segments.get(ZONE, "")
        answer = csi.GetCapacityResponse(available_capacity=self.free.get(zone, 2**30))
        if self.maximum is not None:
            answer.maximum_volume_size.value = self.maximum
        checks.check(request, answer, rpc="/csi.v1.Controller/GetCapacity", driver="the fake")
        return answer


class ClassCatalog:
    """The classes as the watcher wrote them."""

    def __init__(self) -> None:
        self.classes: dict[str, JsonObject] = {}

    def all(self, kind: str, state: object = None) -> dict[str, JsonObject]:
        assert kind == "classes"
        return self.classes

    def get(self, kind: str, name: str, state: object = None) -> JsonObject | None:
        return self.all(kind).get(name)


class CapacityWorld:
    """One driver whose capacity is published."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        owner_level: int = -1,
        kube: KubeSettings | None = None,
        **capacity: Any,
    ) -> None:
        settings = Settings(
            kube=kube or KubeSettings(capacity_qps=-1),
            capacity=CapacitySettings(
                enabled=True, namespace=NAMESPACE, ownerref_level=owner_level, **capacity
            ),
        )
        base = World(
            settings,
            plugin=frozenset({"CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS"}),
            controller=frozenset({"CREATE_DELETE_VOLUME", "GET_CAPACITY"}),
        )
        self.kube, self.client, self.catalog = ObjectsKube(), CapacityClient(), ClassCatalog()
        self.clusters = FakeClusters()
        self.waits: list[float] = []
        self.redis = client
        self.queue = WorkQueue(client, publish=lambda _: None)
        self.queue.register_process()
        self.queue.set_limits(f"capacity|{DRIVER}", 100)
        self.store = CapacityStore(client)
        self.publishing = Publishing(
            settings,
            kube=cast("Any", self.kube),
            store=self.store,
            queue=self.queue,
            catalog=cast("Any", self.catalog),
            clusters=cast("Any", self.clusters),
            periods=Periods(client),
            sleep=self.waits.append,
        )
        self.driver = replace(base.driver, client=cast("Any", self.client))
        self.runtime = replace(
            base.runtime,
            kube=cast("Any", self.kube),
            effects=Effects(cast("Any", self.kube), base.effects.events, self.queue),
            queue=self.queue,
            catalog=cast("Any", self.catalog),
            parts={SPEC.name: self.publishing},
        )
        self.delays: list[float | None] = []

    def add_class(self, name: str, *, uid: str = "", **fields: Any) -> None:
        self.catalog.classes[name] = {
            "metadata": {"name": name, "uid": uid or f"class-{name}"},
            "provisioner": DRIVER,
            "volumeBindingMode": "WaitForFirstConsumer",
            **fields,
        }

    def set_zones(self, *zones: str, keys: tuple[str, ...] = (ZONE,)) -> None:
        nodes = {f"node-{zone}": {ZONE: zone} for zone in zones}
        self.clusters.topology = ClusterTopology({name: {DRIVER: keys} for name in nodes}, nodes)

    def poll(self) -> None:
        """Poll once, and process everything that follows from the poll."""
        self.queue.add([capacity_key(DRIVER, "poll")])
        self.settle()

    def tick(self) -> None:
        """Run one tick of a worker's clock, and process everything that follows from it."""
        self.publishing.tick([self.driver])
        self.settle()

    def settle(self) -> None:
        """Process every due key; failed keys stay in their back-off."""
        while (lease := self.queue.take(DRIVER, ["capacity"], is_woken=True)) is not None:
            assert self.queue.enter(lease, ())
            outcome = sync_capacity(self.runtime, self.driver, lease.key, lease)
            if outcome.action is Action.DONE:
                self.queue.done(lease)
            elif outcome.action is Action.RETRY:
                failed = self.queue.fail(
                    lease, base_seconds=outcome.base_seconds or 1.0, cap_seconds=300.0
                )
                self.delays.append(failed.delay_seconds)
            else:
                self.queue.release(lease, delay_seconds=outcome.delay_seconds)

    @property
    def due(self) -> list[Key]:
        """Return the keys that wait for a worker."""
        return due_keys(self.redis)

    def objects(self) -> list[JsonObject]:
        """Return the capacity objects in the API server."""
        return list(self.kube.kind(CAPACITIES).values())

    def pairs(self) -> list[tuple[str, str]]:
        """Return (class, zone) of every object, sorted."""
        return sorted(
            (one["storageClassName"], (one["nodeTopology"].get("matchLabels") or {}).get(ZONE, ""))
            for one in self.objects()
        )

    def add_object(self, name: str, storage_class: str, zone: str, **fields: Any) -> JsonObject:
        """Add an object that csi-fleet created earlier."""
        labels = {
            "csi.storage.k8s.io/drivername": DRIVER,
            "csi.storage.k8s.io/managed-by": "external-provisioner",
        }
        metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
        metadata |= fields.pop("metadata", {})
        body = {
            "metadata": metadata,
            "storageClassName": storage_class,
            "nodeTopology": {"matchLabels": {ZONE: zone}},
            "capacity": "1Gi",
            **fields,
        }
        return self.kube.add(CAPACITIES, body)

    def clear(self) -> None:
        """Forget the writes and calls so far."""
        self.kube.writes.clear()
        self.client.requests.clear()
