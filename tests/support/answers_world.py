"""A real API server without controllers and a real Redis, for what `explain` answers.

Objects are put as a test wants them, with their status, and nobody changes them: there is no
kube-controller-manager. Redis records are made by the functions that the engine uses.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.taking import take
from workers.cli import explain, pause
from workers.cli.tools import Tools
from workers.config.flags import Command
from workers.config.settings import KubeSettings, RedisSettings, Settings
from workers.config.toolflags import ToolSettings
from workers.explain import generic, nouns
from workers.explain.gather import QUOTAS
from workers.kube import paths
from workers.kube.pauserecord import NAME
from workers.observability import trail
from workers.queue.catalog import CatalogWriter
from workers.queue.intents import IntentStore
from workers.queue.keys import Key
from workers.queue.presence import Presence
from workers.queue.registry import DriverRegistry
from workers.queue.workqueue import WorkQueue

if TYPE_CHECKING:
    import redis

    from tests.support.kube_api import KubeApi
    from workers.kube.paths import Resource

JsonObject = dict[str, Any]
DRIVER: Final = "disk.example.org"
ALL: Final = [
    *("provisioner", "attacher", "resizer", "snapshotter", "snapshot-controller"),
    "data-source-validator",
]
PROVISIONED: Final = {"pv.kubernetes.io/provisioned-by": DRIVER}
ASKED: Final = {"volume.kubernetes.io/storage-provisioner": DRIVER}
_NUMBERS = count(1)


class AnswersWorld:
    """One namespace and one driver, which workers serve with all controllers."""

    def __init__(self, api: KubeApi, kubeconfig: Path, client: redis.Redis, url: str) -> None:
        self.api, self.kubeconfig, self.client, self.url = api, kubeconfig, client, url
        self.namespace = f"shop{next(_NUMBERS)}"
        self.queue = WorkQueue(client, publish=lambda _: None)
        CatalogWriter(client).epoch()
        Presence(client).announce("watcher")
        self.queue.register_process()
        self.serve(DRIVER, *ALL)
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})

    # The cluster.

    def named(self, name: str) -> str:
        """The name of an object without a namespace, of this world alone."""
        return f"{self.namespace}-{name}"

    def put(self, resource: Resource, name: str, **body: Any) -> JsonObject:
        """Create an object, with its status; metadata may be given as `metadata`."""
        metadata = {"name": name, **body.pop("metadata", {})}
        if resource.namespaced:
            metadata["namespace"] = self.namespace
        status = body.pop("status", None)
        manifest = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
        made: JsonObject = self.api.create({**manifest, **body})
        if status is not None:
            path = resource.path(name, namespace=metadata.get("namespace", ""))
            made = self.api.patch(f"{path}/status", {"status": status})
        return made

    def delete(self, resource: Resource, name: str) -> None:
        """Delete as a user does."""
        place = self.namespace if resource.namespaced else ""
        self.api.delete(resource.path(name, namespace=place))

    def storage_class(self, name: str = "fast", driver: str = DRIVER, **body: Any) -> str:
        """A class of this world; returns its whole name."""
        self.put(paths.STORAGE_CLASSES, self.named(name), provisioner=driver, **body)
        return self.named(name)

    def claim(
        self,
        name: str = "data",
        storage_class: str | None = None,
        *,
        phase: str = "Pending",
        status: JsonObject | None = None,
        metadata: JsonObject | None = None,
        **spec: Any,
    ) -> JsonObject:
        """A claim, by default of a new class of the driver."""
        if storage_class is None:
            storage_class = self.storage_class()
        body = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": storage_class,
        }
        given = {"annotations": ASKED, **(metadata or {})}
        return self.put(
            paths.CLAIMS,
            name,
            metadata=given,
            spec={**body, **spec},
            status={"phase": phase, **(status or {})},
        )

    def volume(
        self,
        name: str = "pv",
        *,
        claim: JsonObject | None = None,
        phase: str = "Bound",
        policy: str = "Delete",
        metadata: JsonObject | None = None,
        **spec: Any,
    ) -> JsonObject:
        """A volume of the driver, bound to a claim."""
        body: JsonObject = {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "csi": {"driver": DRIVER, "volumeHandle": "v-1"},
            "persistentVolumeReclaimPolicy": policy,
        }
        if claim is not None:
            names = {key: claim["metadata"][key] for key in ("name", "namespace", "uid")}
            body["claimRef"] = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", **names}
        return self.put(
            paths.VOLUMES,
            self.named(name),
            metadata={"annotations": PROVISIONED, **(metadata or {})},
            spec={**body, **spec},
            status={"phase": phase},
        )

    def bound(self, name: str = "data", *, status: JsonObject | None = None, **spec: Any) -> Any:
        """A claim with its volume; returns both."""
        capacity = {"capacity": {"storage": "1Gi"}}
        claim = self.claim(
            name,
            phase="Bound",
            status={**capacity, **(status or {})},
            volumeName=self.named("pv"),
            **spec,
        )
        return claim, self.volume(claim=claim)

    def pod(self, name: str = "web-0", claim: str = "data", **body: Any) -> None:
        """A pod that mounts a claim."""
        mounted = {"name": "v", "persistentVolumeClaim": {"claimName": claim}}
        container = {"name": "c", "image": "example.invalid/i"}
        spec = {"containers": [container], "volumes": [mounted], **body.pop("spec", {})}
        pods = paths.PODS
        self.put(pods, name, spec=spec, **body)

    def event_of_pod(self, reason: str, message: str, pod: str = "web-0") -> None:
        """A warning about a pod, as kubelet writes it."""
        found = self.api.get(paths.PODS.path(pod, namespace=self.namespace))
        self._warning("Pod", found["metadata"], reason, message, "kubelet")

    def event_of_claim(self, claim: JsonObject, reason: str, message: str, program: str) -> None:
        """A warning about a claim."""
        self._warning("PersistentVolumeClaim", claim["metadata"], reason, message, program)

    def failed_creation(self, message: str) -> None:
        """The StatefulSet controller's warning that it could not create a pod or a claim."""
        about = {"name": "web", "namespace": self.namespace}
        text = f"create Pod web-0 in StatefulSet web failed error: {message}"
        self._warning("StatefulSet", about, "FailedCreate", text, "statefulset-controller")

    def _warning(
        self, kind: str, about: JsonObject, reason: str, message: str, program: str
    ) -> None:
        known = {key: about[key] for key in ("name", "namespace", "uid") if key in about}
        self.put(
            paths.EVENTS,
            f"{about['name']}.1",
            involvedObject={"kind": kind, **known},
            reason=reason,
            message=message,
            type="Warning",
            source={"component": program},
            lastTimestamp="2026-01-01T00:00:00Z",
        )

    def quota(self, name: str, resource: str) -> None:
        """A quota of one that is used up."""
        self.put(
            QUOTAS,
            name,
            spec={"hard": {resource: "1"}},
            status={"hard": {resource: "1"}, "used": {resource: "1"}},
        )

    def attachment(
        self, short_name: str = "va", *, deleted: bool = False, node: str = "n1", **status: Any
    ) -> JsonObject:
        """An attachment of the volume `pv`."""
        name = self.named(short_name)
        finalizer = f"external-attacher/{DRIVER.replace('.', '-')}"
        made = self.put(
            paths.ATTACHMENTS,
            name,
            metadata={"finalizers": [finalizer]},
            spec={
                "attacher": DRIVER,
                "nodeName": node,
                "source": {"persistentVolumeName": self.named("pv")},
            },
            status={"attached": False, **status},
        )
        if deleted:
            self.delete(paths.ATTACHMENTS, name)
        return made

    def snapshot(self, name: str = "snap", **body: Any) -> JsonObject:
        """A snapshot of the claim `data`."""
        spec = {"source": {"persistentVolumeClaimName": "data"}, **body.pop("spec", {})}
        return self.put(paths.SNAPSHOTS, name, spec=spec, **body)

    def content(self, snapshot: JsonObject, **body: Any) -> JsonObject:
        """The content of a snapshot."""
        metadata = snapshot["metadata"]
        ref = {key: metadata[key] for key in ("name", "namespace", "uid")}
        spec = {
            "driver": DRIVER,
            "deletionPolicy": "Delete",
            "source": {"volumeHandle": "v-1"},
            "volumeSnapshotRef": ref,
        }
        given = {"finalizers": [CONTENT_FINALIZER], **body.pop("metadata", {})}
        name = f"snapcontent-{metadata['uid']}"
        return self.put(paths.SNAPSHOT_CONTENTS, name, metadata=given, spec=spec, **body)

    # Redis.

    def serve(self, driver: str, *controllers: str) -> None:
        """Let a worker register a driver."""
        record = {"name": driver, "queue_name": driver, "controllers": list(controllers)}
        DriverRegistry(self.client).register(driver, record, ttl_seconds=60)

    def key(self, word: str, item: JsonObject, kind: str = "") -> Key:
        """The key of the work on an object."""
        records = DriverRegistry(self.client).alive()
        return next(
            key
            for spec, one in nouns.nouns()[word].kinds
            if not kind or one.name == kind
            for key in generic.candidates(records, spec, one, item)
        )

    def fail(self, key: Key, *notes: str, memo: JsonObject | None = None) -> None:
        """Let an attempt fail as the engine does, with its notes; the next one comes much later."""
        self.queue.set_limits(key.lane, 10)
        self.queue.add([key])
        lease = take(self.queue, key)
        assert lease is not None
        with trail.collect():
            for note in notes:
                trail.note(*note.split(" ", 1))
            stored = "" if memo is None else json.dumps(memo)
            self.queue.fail(lease, base_seconds=100, cap_seconds=100, memo=stored)

    def run_key(self, key: Key) -> None:
        """Let a worker work on a key."""
        self.queue.set_limits(key.lane, 10)
        self.queue.add([key])
        assert take(self.queue, key) is not None

    def hold(self, **flags: Any) -> None:
        """`csi-fleet pause`."""
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            pause.run(self.tools(Command.PAUSE, **flags))

    def resume_all(self) -> None:
        """Forget all pauses, which a ConfigMap keeps for the next test."""
        for one in self.api.items(paths.CONFIG_MAPS.path()):
            if one["metadata"]["name"] == NAME:
                place = one["metadata"]["namespace"]
                self.api.delete(paths.CONFIG_MAPS.path(NAME, namespace=place))

    def intent(self, domain: str, **record: Any) -> None:
        """The record of an open attempt."""
        IntentStore(self.client, driver=DRIVER).begin(domain, record)

    # The command.

    def tools(self, command: Command, *arguments: str, **tool: Any) -> Tools:
        """Connections of a command."""
        return Tools(
            Settings(
                command=command,
                arguments=arguments,
                redis=RedisSettings(url=self.url),
                kube=KubeSettings(kubeconfig=str(self.kubeconfig), qps=-1),
                tool=ToolSettings(**tool),
            )
        )

    def explain(self, word: str, name: str) -> tuple[str, JsonObject]:
        """What `csi-fleet explain` prints, as text and as JSON."""
        texts = []
        for output in ("", "json"):
            out = io.StringIO()
            with redirect_stdout(out), redirect_stderr(io.StringIO()):
                explain.run(self.tools(Command.EXPLAIN, word, name, output=output))
            texts.append(out.getvalue())
        return texts[0], json.loads(texts[1])


CONTENT_FINALIZER: Final = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
