"""The parts that a reconcile needs, in memory: API server, Redis records, driver, events, lease.

The fakes keep the contracts of the real parts that reconciles rely on (errors, optimistic locking,
finalizers), and fail on request: `kube.fail["create_volume"] = [ForbiddenError(...), ...]` makes
the next calls raise one error each; None lets one call succeed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, cast

from csi_client import answers as checks
from csi_client import messages as csi
from tests.support.fake_queue import FakeIntents, FakeQueue
from workers.config.settings import Settings
from workers.constants import ANN_STORAGE_PROVISIONER
from workers.controllers.provisioner.claims import claim_volume, sync_claim
from workers.controllers.provisioner.own import Own
from workers.controllers.provisioner.safekeeping import Safekeeping
from workers.controllers.provisioner.spec import SPEC
from workers.controllers.provisioner.volumes import sync_volume
from workers.drivers.driver import Driver
from workers.engine.context import Runtime
from workers.engine.effects import Effects
from workers.engine.outcome import Outcome
from workers.kube.client import MERGE_PATCH
from workers.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from workers.kube.patching import patched
from workers.kube.paths import Resource
from workers.queue.keys import claim_key, volume_key
from workers.queue.leases import CatalogState, Lease, Session
from workers.queue.locks import Lock
from workers.topology.cluster import ClusterTopology

JsonObject = dict[str, Any]
DRIVER = "test-driver"
CAPABILITIES = frozenset({"CREATE_DELETE_VOLUME"})
TOPOLOGY = frozenset({"CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS"})


class FakeKube:
    """Stores objects by (kind, namespace, name); every write is in `writes` as (call, name)."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], JsonObject] = {}
        self.fail: dict[str, list[Exception | None]] = defaultdict(list)
        self.before: dict[str, Callable[[], None]] = {}
        self.writes: list[tuple[str, str]] = []
        self.deleted: list[tuple[str, JsonObject]] = []
        self._version = 100

    def add(self, kind: str, item: Mapping[str, Any]) -> JsonObject:
        """Store an object, as another client would; return the stored copy."""
        stored = deepcopy(dict(item))
        self._version += 1
        stored["metadata"].setdefault("uid", f"uid-{self._version}")
        stored["metadata"]["resourceVersion"] = str(self._version)
        self.objects[self._place(kind, stored)] = stored
        return deepcopy(stored)

    def drop(self, kind: str, name: str, namespace: str = "") -> None:
        """Remove an object completely, even if it has finalizers."""
        self._version += 1
        item = self.objects.pop((kind, namespace, name))
        item["metadata"]["resourceVersion"] = str(self._version)
        self.deleted.append((kind, item))

    def past(
        self, resource: Resource, name: str, *, namespace: str = "", since: int
    ) -> Iterator[tuple[str, JsonObject]]:
        """Yield the remembered deletions; tests forget them by emptying `deleted`."""
        self._reach("past", name)
        for kind, item in self.deleted:
            metadata = item["metadata"]
            place = (kind.partition(".")[0], metadata.get("namespace", ""), metadata["name"])
            is_later = int(metadata["resourceVersion"]) > since
            if is_later and place == (resource.plural, namespace, name):
                yield "DELETED", deepcopy(item)

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> JsonObject:
        return self._get(resource.plural, namespace, name, "get")

    def get_claim(self, namespace: str, name: str) -> JsonObject:
        return self._get("persistentvolumeclaims", namespace, name, "get_claim")

    def update_claim(self, claim: JsonObject) -> JsonObject:
        return self._update("persistentvolumeclaims", claim, "update_claim")

    def list_claims(self, namespace: str = "") -> Iterator[JsonObject]:
        for (kind, place, _), item in list(self.objects.items()):
            if kind == "persistentvolumeclaims" and namespace in {"", place}:
                yield deepcopy(item)

    def get_volume(self, name: str) -> JsonObject:
        return self._get("persistentvolumes", "", name, "get_volume")

    def create_volume(self, volume: JsonObject) -> JsonObject:
        name = volume["metadata"]["name"]
        self._reach("create_volume", name)
        if ("persistentvolumes", "", name) in self.objects:
            raise AlreadyExistsError(
                409, "AlreadyExists", f'persistentvolumes "{name}" already exists'
            )
        self.writes.append(("create_volume", name))
        return self.add("persistentvolumes", volume)

    def delete_volume(self, name: str, *, uid: str | None = None) -> JsonObject:
        self._reach("delete_volume", name)
        found = self._get("persistentvolumes", "", name, "")
        if uid is not None and found["metadata"]["uid"] != uid:
            raise ConflictError(409, "Conflict", "the UID in the precondition does not match")
        self.writes.append(("delete_volume", name))
        stored = self.objects["persistentvolumes", "", name]
        if stored["metadata"].get("finalizers"):
            stored["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return self.add("persistentvolumes", stored)
        self.drop("persistentvolumes", name)
        return found

    def add_volume_finalizer(self, name: str, finalizer: str, *, uid: str) -> JsonObject:
        return self._finalizers(name, "add_volume_finalizer", uid, lambda old: [*old, finalizer])

    def remove_volume_finalizer(self, name: str, finalizer: str, *, uid: str) -> JsonObject:
        return self._finalizers(
            name,
            "remove_volume_finalizer",
            uid,
            lambda old: [one for one in old if one != finalizer],
        )

    def merge(self, resource: Resource, item: JsonObject, change: JsonObject) -> JsonObject:
        name = item["metadata"]["name"]
        stored = self._get(resource.plural, item["metadata"].get("namespace", ""), name, "merge")
        if stored["metadata"]["uid"] != item["metadata"]["uid"]:
            raise ConflictError(409, "Conflict", "the UID in the precondition does not match")
        self.writes.append(("merge", name))
        return self.add(resource.plural, patched(stored, change, MERGE_PATCH))

    def get_class(self, name: str) -> JsonObject:
        return self._get("storageclasses.storage.k8s.io", "", name, "get_class")

    def get_secret(self, namespace: str, name: str) -> JsonObject:
        return self._get("secrets", namespace, name, "get_secret")

    def get_attributes_class(self, name: str) -> JsonObject:
        return self._get("volumeattributesclasses.storage.k8s.io", "", name, "get_attributes_class")

    def apply_config_map(self, config_map: JsonObject) -> JsonObject:
        self._reach("apply_config_map", config_map["metadata"]["name"])
        known = self.objects.get(self._place("configmaps", config_map))
        metadata = dict(config_map["metadata"])
        if known is not None:
            metadata["uid"] = known["metadata"]["uid"]
        return self.add("configmaps", {**config_map, "metadata": metadata})

    def delete_config_map(self, namespace: str, name: str) -> None:
        self._reach("delete_config_map", name)
        self.objects.pop(("configmaps", namespace, name), None)

    def kind(self, kind: str) -> dict[str, JsonObject]:
        """Return all objects of a kind by name."""
        return {key[2]: item for key, item in self.objects.items() if key[0] == kind}

    def _get(self, kind: str, namespace: str, name: str, call: str) -> JsonObject:
        if call:
            self._reach(call, name)
        found = self.objects.get((kind, namespace, name))
        if found is None:
            raise NotFoundError(404, "NotFound", f'{kind} "{name}" not found')
        return deepcopy(found)

    def _update(self, kind: str, item: JsonObject, call: str) -> JsonObject:
        self._reach(call, item["metadata"]["name"])
        stored = self.objects.get(self._place(kind, item))
        if stored is None:
            raise NotFoundError(404, "NotFound", f'{kind} "{item["metadata"]["name"]}" not found')
        if stored["metadata"]["resourceVersion"] != item["metadata"].get("resourceVersion"):
            raise ConflictError(409, "Conflict", "the object has been modified")
        self.writes.append((call, item["metadata"]["name"]))
        return self.add(kind, item)

    def _finalizers(
        self, name: str, call: str, uid: str, change: Callable[[list[str]], list[str]]
    ) -> JsonObject:
        self._reach(call, name)
        stored = self._get("persistentvolumes", "", name, "")
        if stored["metadata"]["uid"] != uid:
            raise ConflictError(409, "Conflict", "the UID in the precondition does not match")
        stored["metadata"]["finalizers"] = change(stored["metadata"].get("finalizers") or [])
        self.writes.append((call, name))
        stored = self.add("persistentvolumes", stored)
        if not stored["metadata"]["finalizers"] and stored["metadata"].get("deletionTimestamp"):
            self.drop("persistentvolumes", name)
        return stored

    def _reach(self, call: str, name: str) -> None:
        if call in self.before:
            self.before.pop(call)()
        planned = self.fail[call]
        error = planned.pop(0) if planned else None
        if error is not None:
            raise error

    @staticmethod
    def _place(kind: str, item: Mapping[str, Any]) -> tuple[str, str, str]:
        return kind, item["metadata"].get("namespace", ""), item["metadata"]["name"]

    def list(self, resource: Resource) -> Iterator[JsonObject]:
        yield from [deepcopy(item) for item in self.kind(resource.plural).values()]

    def find_together(
        self, resource: Resource, matches: Callable[[JsonObject], bool]
    ) -> JsonObject | None:
        return next(filter(matches, self.list(resource)), None)


class FakeCatalog:
    """Returns classes live from the API server, and attachments by PV name."""

    def __init__(self) -> None:
        self.attachments: dict[str, JsonObject] = {}
        self.classes: dict[str, JsonObject] = {}

    def get(self, kind: str, name: str, state: CatalogState | None = None) -> JsonObject | None:
        return deepcopy(self.classes.get(name)) if kind == "classes" else None

    def attachment(self, volume_name: str) -> JsonObject | None:
        return self.attachments.get(volume_name)


class FakeEvents:
    """Records every event as (type, reason, message)."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self.objects: list[JsonObject] = []

    def event(
        self, involved: JsonObject, kind: str, reason: str, message: str, *, component: str
    ) -> None:
        self.seen.append((kind, reason, message))
        self.objects.append(involved)

    def warnings(self) -> list[str]:
        return [message for kind, _, message in self.seen if kind == "Warning"]

    def reasons(self) -> list[str]:
        return [reason for _, reason, _ in self.seen]


class FakeDriverClient:
    """A CSI driver: each call gets the next planned answer, else the default one.

    A planned answer is an exception, a message, or a function of the request.
    """

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.delete_answers: list[Exception | None] = []
        self.created: list[csi.CreateVolumeRequest] = []
        self.deleted: list[tuple[str, dict[str, str]]] = []
        self.is_slow = False

    def create_volume(
        self,
        request: csi.CreateVolumeRequest,
        *,
        on_slow: Callable[[], None] | None = None,
        timeout_seconds: float | None = None,
    ) -> csi.CreateVolumeResponse:
        self.created.append(request)
        if self.is_slow and on_slow is not None:
            on_slow()
        answer = self.answers.pop(0) if self.answers else default_answer
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            raise answer
        checked = cast("csi.CreateVolumeResponse", answer)
        checks.check(request, checked, rpc="/csi.v1.Controller/CreateVolume", driver=DRIVER)
        return checked

    def delete_volume(
        self, volume_id: str, secrets: Mapping[str, str], *, timeout_seconds: float | None = None
    ) -> None:
        self.deleted.append((volume_id, dict(secrets)))
        error = self.delete_answers.pop(0) if self.delete_answers else None
        if error is not None:
            raise error


def default_answer(request: csi.CreateVolumeRequest) -> csi.CreateVolumeResponse:
    """Return the answer of a driver that behaves normally."""
    size = request.capacity_range.required_bytes
    volume = csi.Volume(volume_id="test-volume-id", capacity_bytes=size)
    if request.HasField("volume_content_source"):
        volume.content_source.CopyFrom(request.volume_content_source)
    return csi.CreateVolumeResponse(volume=volume)


class FakeClusters:
    """Provides the topology data of the catalog."""

    def __init__(self) -> None:
        self.topology = ClusterTopology({}, {}, version=1)

    def current(self, state: CatalogState | None) -> ClusterTopology:
        return self.topology


@dataclass
class World:
    """One driver, one API server and one Redis; reconciles run one after the other."""

    settings: Settings = field(default_factory=Settings)
    plugin: frozenset[str] = frozenset({"CONTROLLER_SERVICE"})
    controller: frozenset[str] = CAPABILITIES

    def __post_init__(self) -> None:
        self.kube, self.intents = FakeKube(), FakeIntents()
        self.catalog, self.events = FakeCatalog(), FakeEvents()
        self.client, self.queue, self.clusters = FakeDriverClient(), FakeQueue(), FakeClusters()
        self.driver = Driver(
            name=DRIVER,
            queue_name=DRIVER,
            client=cast("Any", self.client),
            plugin_capabilities=self.plugin,
            controller_capabilities=self.controller,
            in_tree_name=None,
            identity="test-provisioner",
            settings=self.settings,
        )
        self.effects = Effects(
            cast("Any", self.kube), cast("Any", self.events), cast("Any", self.queue)
        )
        self.own = Own(
            intents=cast("Any", self.intents),
            safekeeping=Safekeeping(
                intents=cast("Any", self.intents),
                kube=cast("Any", self.kube),
                catalog=cast("Any", self.catalog),
                namespace="fleet-system",
            ),
            clusters=cast("Any", self.clusters),
        )
        self.runtime = Runtime(
            settings=self.settings,
            kube=cast("Any", self.kube),
            effects=self.effects,
            queue=cast("Any", self.queue),
            catalog=cast("Any", self.catalog),
            parts={SPEC.name: self.own},
            driver_of=lambda _name: self.driver,
        )
        self.memo = ""
        self.clock: Callable[[], float] = time.time
        self.fails = 0

    def add_class(self, name: str = "fast", **fields: Any) -> JsonObject:
        """Add a class of this driver, with immediate binding and the reclaim policy Delete."""
        body = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": DRIVER,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "Immediate",
        }
        return self.kube.add("storageclasses.storage.k8s.io", body | fields)

    def add_claim(
        self,
        name: str = "data",
        uid: str = "u1",
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> JsonObject:
        """Add the claim default/<name> of class `fast`, with 1 KiB and ReadWriteOnce."""
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": uid,
                "annotations": {ANN_STORAGE_PROVISIONER: DRIVER, **(annotations or {})},
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "fast",
                "resources": {"requests": {"storage": "1Ki"}},
                **spec,
            },
            "status": {"phase": "Pending"},
        }
        return self.kube.add("persistentvolumeclaims", body)

    def live_claim(self, name: str = "data") -> JsonObject:
        """Return the claim as it is now."""
        return self.kube.objects["persistentvolumeclaims", "default", name]

    def drop_claim(self, name: str = "data") -> None:
        """Remove the claim, even if it is protected."""
        self.kube.drop("persistentvolumeclaims", name, "default")

    def volumes(self) -> dict[str, JsonObject]:
        """Return the PVs in the API server."""
        return self.kube.kind("persistentvolumes")

    def lease(self, key: Any, domain: str) -> Lease:
        """Return a lease that is held for an hour of this machine's time."""
        session = Session(epoch="e", clock=self.clock)
        state = CatalogState("e", {}, frozenset({"classes", "csinodes", "nodes"}))
        return Lease(
            key=key,
            locks=(Lock(domain),) if domain else (),
            token="t",
            fence=1,
            fails=self.fails,
            memo=self.memo,
            waited_seconds=0.0,
            catalog=state,
            session=session,
        )

    def claim_pass(self, claim: Mapping[str, Any]) -> Outcome:
        """Reconcile a claim once, then apply the outcome as the queue does."""
        meta = claim["metadata"]
        key = claim_key(DRIVER, meta["namespace"], meta["name"], meta["uid"])
        lease = self.lease(key, claim_volume(self.driver, key))
        outcome = sync_claim(self.runtime, self.driver, key, lease)
        self._settle(lease, outcome)
        return outcome

    def volume_pass(self, name: str) -> Outcome:
        """Reconcile a PV once."""
        key = volume_key(DRIVER, name)
        lease = self.lease(key, name)
        outcome = sync_volume(self.runtime, self.driver, key, lease)
        self._settle(lease, outcome)
        return outcome

    def _settle(self, lease: Lease, outcome: Outcome) -> None:
        word = outcome.action.value
        if word == "retry":
            self.fails, self.memo = self.fails + 1, outcome.memo
        elif word == "done":
            self.fails, self.memo = 0, ""
            if outcome.finish_intent:
                self.intents.finish(lease.domain, lease)
                self.intents.saved.add(lease.domain)
