"""Claims on a live API server, timed until their PV exists and they are Bound, for any provisioner.

The generator is cheap on purpose (raw HTTP, typed decoding of the watches' lines), because it
shares two cores with everything that it measures.
"""

from __future__ import annotations

import http.client
import json
import queue
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from tests.bench.drivers import TOPOLOGY_KEY
from tests.support.fleet import ANN_SELECTED_NODE
from tests.support.kube_api import KubeApi

CREATORS = 8
ANN_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
NODES = 3


class _Meta(msgspec.Struct):
    name: str = ""
    resourceVersion: str = ""  # noqa: N815 - the API's spelling
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class _Spec(msgspec.Struct):
    claimRef: _Meta | None = None  # noqa: N815 - the API's spelling


class _Status(msgspec.Struct):
    phase: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: _Object


@dataclass
class Times:
    """When each claim of one run reached each stage, in seconds since 1970."""

    created: dict[str, float] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)  # by kube-controller-manager
    saved: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)
    gone: dict[str, float] = field(default_factory=dict)


class Load:
    """One namespace with classes for the drivers; everything is removed at the end.

    Args:
        api: client of an administrator.
        name: the namespace, and the prefix of all names.
        drivers: provisioner names.
        has_topology: classes wait for the first consumer, and claims have a selected node.
    """

    def __init__(
        self, api: KubeApi, name: str, drivers: Sequence[str], *, has_topology: bool = False
    ) -> None:
        self.api = api
        self.name = name
        self.drivers = list(drivers)
        self.has_topology = has_topology
        self.path = f"/api/v1/namespaces/{name}/persistentvolumeclaims"
        self.times = Times()
        self._over = threading.Event()
        self._local = threading.local()
        self._streams: list[http.client.HTTPConnection] = []
        self._threads: list[threading.Thread] = []
        self._count = 0

    def __enter__(self) -> Self:
        create = self.api.create
        create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}})
        if self.has_topology:
            self._create_nodes()
        for driver in self.drivers:
            create(
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "StorageClass",
                    "metadata": {"name": self.class_of(driver)},
                    "provisioner": driver,
                    "volumeBindingMode": (
                        "WaitForFirstConsumer" if self.has_topology else "Immediate"
                    ),
                }
            )
        self._watch("/api/v1/persistentvolumes", self._on_volume)
        self._watch(self.path, self._on_claim)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for stream in self._streams:
            if stream.sock is not None:
                stream.sock.close()
        for driver in self.drivers:
            self.api.delete(f"/apis/storage.k8s.io/v1/storageclasses/{self.class_of(driver)}")
        for node in self.nodes if self.has_topology else []:
            self.api.delete(f"/apis/storage.k8s.io/v1/csinodes/{node}")
            self.api.delete(f"/api/v1/nodes/{node}")
        self.api.delete(f"/api/v1/namespaces/{self.name}")

    def class_of(self, driver: str) -> str:
        return f"{self.name}.{driver}"

    @property
    def nodes(self) -> list[str]:
        return [f"{self.name}-node-{number}" for number in range(NODES)]

    def run(self, count: int, *, per_second: float = 0.0, timeout_seconds: float = 180) -> Times:
        """Create claims at once or at a steady rate; return their times.

        It returns when all claims are Bound, or at the timeout.
        """
        self.times = Times()
        todo: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        threads = [threading.Thread(target=self._create_all, args=(todo,)) for _ in range(CREATORS)]
        for thread in threads:
            thread.start()
        started = time.time()
        for number in range(count):
            todo.put(self._count + number)
            if per_second:
                time.sleep(max(0.0, started + (number + 1) / per_second - time.time()))
        self._count += count
        for _ in threads:
            todo.put(None)
        for thread in threads:
            thread.join()
        self._wait(lambda: len(self.times.bound) >= count, timeout_seconds)
        return self.times

    def delete_all(self, *, timeout_seconds: float = 180) -> float:
        """Delete all claims, wait until the volumes are gone, and return volumes per second."""
        count, started = len(self.times.saved), time.time()
        self.api.request("DELETE", self.path)
        self._wait(lambda: len(self.times.gone) >= count, timeout_seconds)
        gone = self.times.gone
        return len(gone) / (max(gone.values(), default=time.time()) - started)

    def _create_all(self, todo: queue.SimpleQueue[int | None]) -> None:
        while (number := todo.get()) is not None:
            driver = self.drivers[number % len(self.drivers)]
            name = f"{self.name}-{number}"
            annotations = {ANN_PROVISIONER: driver}
            if self.has_topology:
                annotations[ANN_SELECTED_NODE] = self.nodes[number % NODES]
            self.times.created[name] = time.time()
            self._post(
                {
                    "metadata": {"name": name, "annotations": annotations},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "storageClassName": self.class_of(driver),
                        "resources": {"requests": {"storage": "1Mi"}},
                    },
                }
            )

    def _post(self, body: Any) -> None:
        if not hasattr(self._local, "connection"):
            self._local.connection = self._connect(60)
        self._local.connection.request("POST", self.path, json.dumps(body), self._headers())
        answer = self._local.connection.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"claim not created: {data[:300]!r}")

    def _connect(self, timeout_seconds: float) -> http.client.HTTPConnection:
        address = urllib.parse.urlsplit(self.api.server)
        verify = self.api.session.verify
        context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
        if verify is False:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(
            address.hostname or "", address.port, context=context, timeout=timeout_seconds
        )

    def _headers(self) -> dict[str, str]:
        authorization = self.api.session.headers.get("Authorization", "")
        return {"Authorization": str(authorization), "Content-Type": "application/json"}

    def _watch(self, path: str, notice: Callable[[_Event, float], None]) -> None:
        listed = self.api.request("GET", path, params={"limit": "1"})["metadata"]
        version = str(listed["resourceVersion"])
        answer = self._stream(path, version)
        decode = msgspec.json.Decoder(_Event).decode

        def read() -> None:
            nonlocal answer, version
            while not self._over.is_set():
                try:
                    line = answer.readline()
                except (OSError, ValueError, AttributeError):
                    return
                if not line:  # the server closes watches that it finds slow
                    if not self._over.is_set():
                        answer = self._stream(path, version)
                    continue
                event = decode(line)
                assert event.type != "ERROR", line
                version = event.object.metadata.resourceVersion
                notice(event, time.time())

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _stream(self, path: str, version: str) -> http.client.HTTPResponse:
        stream = self._connect(900)
        query = f"watch=1&allowWatchBookmarks=true&resourceVersion={version}"
        stream.request("GET", f"{path}?{query}", headers=self._headers())
        self._streams.append(stream)
        return stream.getresponse()

    def _on_volume(self, event: _Event, now: float) -> None:
        reference = event.object.spec.claimRef
        if reference is None or not reference.name.startswith(self.name):
            return
        if event.type == "ADDED":
            self.times.saved.setdefault(reference.name, now)
        elif event.type == "DELETED":
            self.times.gone.setdefault(reference.name, now)

    def _on_claim(self, event: _Event, now: float) -> None:
        if ANN_PROVISIONER in event.object.metadata.annotations:
            self.times.asked.setdefault(event.object.metadata.name, now)
        if event.object.status.phase == "Bound":
            self.times.bound.setdefault(event.object.metadata.name, now)

    def _wait(self, is_over: Callable[[], bool], timeout_seconds: float) -> None:
        end = time.monotonic() + timeout_seconds
        while not is_over() and time.monotonic() < end:
            time.sleep(0.05)

    def _create_nodes(self) -> None:
        """Create nodes in different zones with all drivers."""
        for number, node in enumerate(self.nodes):
            labels = {TOPOLOGY_KEY: f"zone-{number}"}
            self.api.create(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": node, "labels": labels},
                }
            )
            self.api.create(
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "CSINode",
                    "metadata": {"name": node},
                    "spec": {
                        "drivers": [
                            {"name": driver, "nodeID": node, "topologyKeys": [TOPOLOGY_KEY]}
                            for driver in self.drivers
                        ]
                    },
                }
            )
