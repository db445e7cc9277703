"""A fake API server that costs almost nothing, with a fake binder and a feed of claims.

`StandInApi(folder)` runs `python -m tests.bench.standin_api FOLDER` and connects over loopback:

    api.feed(own=[...], foreign=[...], count=1000, per_second=500.0)
    api.figures()                   # {"created": 1000, "saved": 998, "p50": 0.02, ...}

It serves the requests of watcher and workers: lists, watches, single objects, creations, patches
and deletions. Like kube-controller-manager, it annotates a claim and binds it when its PV exists. A
claim causes six events, each with managed fields. Claims of foreign drivers cause the same events
at once: they are other systems' work, which a system's watcher sees completely.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from tests.support.processes import Process, start_process
from tests.support.running import Running
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
TICK_SECONDS = 0.01
NAMESPACE = "bench"
CLAIMS, VOLUMES = "v1/persistentvolumeclaims", "v1/persistentvolumes"
CLASSES = "storage.k8s.io/v1/storageclasses"
_FIELDS = {f"f:part-{number}": {"f:value": {}, "f:other": {}} for number in range(12)}
# The fields that two writers leave behind: half of a real object.
MANAGED = [
    {"manager": name, "operation": "Update", "apiVersion": "v1", "fieldsV1": _FIELDS}
    for name in ("kubectl", "kube-controller-manager")
]
_encode = msgspec.json.Encoder().encode
Item = dict[str, Any]


class StandInApi(Running):
    """Runs the fake API server in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{(self.folder / 'port').read_text()}"

    @property
    def kubeconfig(self) -> Path:
        """Write a kubeconfig for this server and return its path."""
        path = self.folder / "kubeconfig"
        cluster = {"name": "c", "cluster": {"server": self.url}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [cluster],
            "contexts": [context],
            "users": [{"name": "u", "user": {}}],
            "current-context": "c",
        }
        path.write_text(json.dumps(config))
        return path

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._process = start_process(
            "stand-in-api",
            [sys.executable, "-m", "tests.bench.standin_api", str(self.folder)],
            log=self.folder / "api.log",
            cwd=ROOT,
        )
        wait_until((self.folder / "port").exists, 60, "the stand-in API server listens")
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def feed(
        self, *, own: Sequence[str], foreign: Sequence[str] = (), count: int, per_second: float
    ) -> None:
        """Create `count` claims of own drivers and as many of each further system at that rate.

        This resets the figures.
        """
        plan = {"own": own, "foreign": foreign, "count": count, "per_second": per_second}
        request = urllib.request.Request(f"{self.url}/feed", json.dumps(plan).encode())
        urllib.request.urlopen(request, timeout=30).close()

    def figures(self) -> dict[str, Any]:
        """Return the figures of own claims: counts, seconds from claim to PV, and the end time."""
        with urllib.request.urlopen(f"{self.url}/figures", timeout=30) as answer:
            return dict(json.load(answer))


class Store:
    """All objects and their watches."""

    def __init__(self) -> None:
        self.version = 100
        self.items: defaultdict[str, dict[str, Item]] = defaultdict(dict)
        self.log: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self.watchers: defaultdict[str, set[asyncio.Transport]] = defaultdict(set)

    def put(self, kind: str, name: str, item: Item, event: str = "MODIFIED") -> Item:
        """Store an object under a new version and send it to the watches."""
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.items[kind][name] = item
        self._tell(kind, event, item)
        return item

    def drop(self, kind: str, name: str) -> Item | None:
        """Remove an object."""
        item = self.items[kind].pop(name, None)
        if item is not None:
            self.version += 1
            item["metadata"]["resourceVersion"] = str(self.version)
            self._tell(kind, "DELETED", item)
        return item

    def watch(self, kind: str, since: int, transport: asyncio.Transport) -> None:
        """Send the events after a version, then all further events."""
        transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for version, line in self.log[kind]:
            if version > since:
                transport.write(line)
        self.watchers[kind].add(transport)

    def _tell(self, kind: str, event: str, item: Item) -> None:
        line = _encode({"type": event, "object": item}) + b"\n"
        chunk = b"%x\r\n%s\r\n" % (len(line), line)
        self.log[kind].append((self.version, chunk))
        for transport in self.watchers[kind]:
            transport.write(chunk)


class Cluster:
    """Acts as users and kube-controller-manager do, and counts the figures."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.number = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.begin()

    def begin(self) -> None:
        """Start counting from now."""
        self.created: dict[str, float] = {}
        self.waits: list[float] = []
        self.last = 0.0

    def feed(self, plan: Item) -> None:
        """Create the classes at once and the claims in the background."""
        for driver in (*plan["own"], *plan["foreign"]):
            if driver not in self.store.items[CLASSES]:
                body = {"metadata": {"name": driver, "uid": driver}, "provisioner": driver}
                self.store.put(CLASSES, driver, body, "ADDED")
        self.begin()
        task = asyncio.get_running_loop().create_task(self._run(plan))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run(self, plan: Item) -> None:
        started, done = time.monotonic(), 0
        own, foreign = plan["own"], plan["foreign"]
        while done < plan["count"]:
            due = min(plan["count"], int((time.monotonic() - started) * plan["per_second"]) + 1)
            for number in range(done, due):
                self._claim(own[number % len(own)])
                # Each system has the same number of drivers: this makes one claim of each.
                for at in range(number % len(own), len(foreign), len(own)):
                    self._bind(*self._claim(foreign[at]))
            done = due
            await asyncio.sleep(TICK_SECONDS)

    def _claim(self, driver: str) -> tuple[str, Item]:
        """Create a claim with the annotation by which the cluster asks a driver for a volume."""
        self.number += 1
        uid = f"00000000-0000-4000-8000-{self.number:012}"
        name = f"claim-{self.number}"
        item: Item = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": uid,
                "finalizers": ["kubernetes.io/pvc-protection"],
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "managedFields": MANAGED,
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": driver,
                "volumeMode": "Filesystem",
            },
            "status": {"phase": "Pending"},
        }
        self.created[uid] = time.monotonic()
        self.store.put(CLAIMS, f"{NAMESPACE}/{name}", item, "ADDED")
        item["metadata"]["annotations"] = {"volume.kubernetes.io/storage-provisioner": driver}
        return uid, self.store.put(CLAIMS, f"{NAMESPACE}/{name}", item)

    def _bind(self, uid: str, claim: Item) -> None:
        """Bind a claim of another system, with that system's volume."""
        self.created.pop(uid)
        name, driver = f"pvc-{uid}", claim["spec"]["storageClassName"]
        reference = {"namespace": NAMESPACE, "name": claim["metadata"]["name"], "uid": uid}
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {
                "name": name,
                "annotations": {"pv.kubernetes.io/provisioned-by": driver},
                "managedFields": MANAGED,
            },
            "spec": {"csi": {"driver": driver, "volumeHandle": name}, "claimRef": reference},
        }
        self.saved(name, body)

    def saved(self, name: str, volume: Item) -> Item:
        """Store a new PV, and bind the PV and its claim."""
        store, reference = self.store, volume["spec"].get("claimRef") or {}
        volume["metadata"].setdefault("uid", f"pv-{name}")
        store.put(VOLUMES, name, volume, "ADDED")
        begun = self.created.pop(str(reference.get("uid")), None)
        if begun is not None:
            self.last = time.monotonic()
            self.waits.append(self.last - begun)
        claim = store.items[CLAIMS].get(f"{NAMESPACE}/{reference.get('name')}")
        if claim is not None:
            store.put(VOLUMES, name, volume | {"status": {"phase": "Bound"}})
            claim["spec"]["volumeName"] = name
            store.put(CLAIMS, f"{NAMESPACE}/{reference['name']}", claim)
            claim["status"] = {"phase": "Bound"}
            store.put(CLAIMS, f"{NAMESPACE}/{reference['name']}", claim)
        return volume

    def figures(self) -> Item:
        """Return the figures of own claims since the last feed."""
        waits = sorted(self.waits) or [0.0]
        return {
            "created": len(self.created) + len(self.waits),
            "saved": len(self.waits),
            "last": self.last,
            "p50": waits[len(waits) // 2],
            "p99": waits[min(len(waits) - 1, int(len(waits) * 0.99))],
            "watchers": sum(map(len, self.store.watchers.values())),
        }


class Connection(asyncio.Protocol):
    """One client, which sends its requests one after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._store = cluster, cluster.store
        self._buffer = b""
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set when connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # of TCP

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        for watchers in self._store.watchers.values():
            watchers.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            head, _, rest = self._buffer.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            lengths = [one[15:] for one in lines if one[:15].lower() == "content-length:"]
            length = int(lengths[0]) if lengths else 0
            if len(rest) < length:
                return
            self._buffer = rest[length:]
            method, target, _ = first.split(" ")
            self._answer(method, target, rest[:length])

    def _answer(self, method: str, target: str, body: bytes) -> None:
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        content = msgspec.json.decode(body) if body else None
        kind, name = place(url.path)
        if query.get("watch"):
            since = int(query.get("resourceVersion") or 0)
            self._store.watch(kind, since, self._transport)
            return
        code, answer = self._reply(method, url.path, kind, name, content)
        text = _encode(answer)
        self._transport.write(
            b"HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (code, len(text), text)
        )

    def _reply(self, method: str, path: str, kind: str, name: str, content: Any) -> tuple[int, Any]:
        items = self._store.items[kind]
        if path == "/feed":
            self._cluster.feed(content)
            return 200, {}
        if path == "/figures":
            return 200, self._cluster.figures()
        if method == "POST" and kind == VOLUMES:
            return 201, self._cluster.saved(content["metadata"]["name"], content)
        if method == "POST":  # no client reads events and the like
            return 201, content
        if not kind or not name:
            listed = {"metadata": {"resourceVersion": str(self._store.version)}, "resources": []}
            return 200, listed | {"items": list(items.values())}
        if name not in items:
            return 404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": path}
        if method == "DELETE":
            return 200, self._store.drop(kind, name)
        return 200, items[name]


def place(path: str) -> tuple[str, str]:
    """Return the kind, and NAMESPACE/NAME or NAME of an object, or "" for all objects.

    `/api/v1/namespaces/a/persistentvolumeclaims/b` -> `v1/persistentvolumeclaims`, `a/b`.
    """
    parts = path.strip("/").split("/")
    group, rest = "/".join(parts[1:3]), parts[3:]
    if parts[0] == "api":
        group, rest = "v1", parts[2:]
    namespace = ""
    if rest[:1] == ["namespaces"] and rest[2:]:
        namespace, rest = f"{rest[1]}/", rest[2:]
    if not rest:
        return "", ""
    return f"{group}/{rest[0]}", namespace + rest[1] if rest[1:] else ""


async def serve(folder: Path) -> None:
    """Serve until the process is killed."""
    cluster = Cluster(Store())
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(cluster), "127.0.0.1", 0)
    draft = folder / "port.draft"
    draft.write_text(str(server.sockets[0].getsockname()[1]))
    draft.replace(folder / "port")
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
