"""Runs `csi-fleet run` as a user does, with example drivers, and shows the state of its claims.

```
with Fleet(directory, kubeconfig, [driver]) as fleet: ...
scene = Scene(api)                       # a namespace, classes and claims, removed by clean_up
```
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from tests.support.csi_driver import DirectoryDriver
from tests.support.kube_api import JsonObject, KubeApi, KubeApiError
from tests.support.processes import Process, start_process
from tests.support.running import Running
from tests.support.waiting import wait_until
from workers.queue.seal import new_key

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60
# A test has its own API server, so client-go's default of 5 requests a second would only slow it
# down.
API_RATE = ("--kube-api-qps=1000", "--kube-api-burst=1000")
_RUN_ONLY = ("--workers=", "--state-dir=", "--redis-url=")
ANN_SELECTED_NODE = "volume.kubernetes.io/selected-node"


class FleetEndedError(RuntimeError):
    """The program ended; the text contains the end of its log."""


def leader_flags(
    namespace: str, duration: float = 4, deadline: float = 3, period: float = 1
) -> list[str]:
    """Return the flags for leader election in that namespace, with short times for tests, in
    seconds."""
    times = {"lease-duration": duration, "renew-deadline": deadline, "retry-period": period}
    return [
        "--leader-election",
        f"--leader-election-namespace={namespace}",
        *(f"--leader-election-{name}={seconds:g}s" for name, seconds in times.items()),
    ]


def program(code: Path = ROOT) -> list[str]:
    """Return the command of a checkout, with that checkout's packages if it has its own."""
    own = code / ".venv" / "bin" / "python"
    return [str(own) if code != ROOT and own.exists() else sys.executable, "-m", "workers"]


def environment(**extra: str) -> dict[str, str]:
    """Return the environment without KUBECONFIG, which would override --kubeconfig (P-001)."""
    kept = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
    return kept | extra


class Fleet(Running):
    """Runs `csi-fleet run` as one child process with files in `directory`, of the release in
    `code`; or the `command` that has a Go sidecar's name."""

    def __init__(
        self,
        directory: Path,
        kubeconfig: str | Path,
        drivers: Sequence[DirectoryDriver | str],
        *flags: str,
        redis_url: str = "",
        env: Mapping[str, str] | None = None,
        code: Path = ROOT,
        command: str = "run",
    ) -> None:
        self.directory = directory
        self.code = code
        self.log = directory / "fleet.log"
        self.state = directory / "state"
        addresses = [one if isinstance(one, str) else one.address for one in drivers]
        self.command = [
            *program(code),
            command,
            f"--kubeconfig={kubeconfig}",
            *(f"--csi-address={address}" for address in addresses),
            f"--state-dir={self.state}",
            *((f"--redis-url={redis_url}",) if redis_url else ()),
            *API_RATE,
            *flags,
        ]
        # One signing key for all workers, and for a test that writes what a worker would.
        self.records_key = new_key()
        self.env = environment(CSI_FLEET_RECORDS_KEY=self.records_key) | dict(env or {})
        self.process: Process | None = None
        self._redis_url = redis_url

    @property
    def redis_url(self) -> str:
        """Return the URL of the given Redis, or of the embedded one."""
        return self._redis_url or f"unix://{self.state / 'redis.sock'}?db=0"

    def start(self, *, wait: bool = True) -> Self:
        """Start the program; with `wait`, wait until all its parts are ready."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.process = start_process(
            "csi-fleet", self.command, log=self.log, env=self.env, cwd=self.code
        )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait until every worker takes work and the watcher has listed everything."""
        wait_until(self.is_ready, START_SECONDS, "csi-fleet is ready", fatal=FleetEndedError)

    def is_ready(self) -> bool:
        """Return True if every part is ready; raise FleetEndedError if the program has ended."""
        assert self.process is not None
        if not self.process.is_running():
            raise FleetEndedError(self.process.log_tail(40))
        parts = [one for one in self.state.glob("*") if one.name.startswith(("worker-", "watcher"))]
        return bool(parts) and all(any(one.glob("*.ready")) for one in parts)

    def workers(self) -> list[int]:
        """Return the process ids of the worker processes that are running now."""
        return self.parts("worker")

    def parts(self, name: str) -> list[int]:
        """Return the process ids of the running parts of that name: worker, watcher, beat,
        redis-server."""
        assert self.process is not None
        return [pid for pid in _children(self.process.pid) if name in _names(pid)]

    @contextmanager
    def extra_worker(self) -> Iterator[Process]:
        """Run one more worker process next to those of the program."""
        state = self.directory / "extra-worker"
        state.mkdir(mode=0o700)
        kept = [one for one in self.command[4:] if not one.startswith(_RUN_ONLY)]
        process = start_process(
            "worker",
            [
                *program(self.code),
                "worker",
                *kept,
                f"--state-dir={state}",
                f"--redis-url={self.redis_url}",
            ],
            log=self.log,
            env=self.env,
            cwd=self.code,
        )
        try:
            wait_until(lambda: any(state.glob("*.ready")), START_SECONDS, "worker is ready")
            yield process
        finally:
            process.stop()

    def log_text(self) -> str:
        """Return everything that the program's parts printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def stop(self) -> int | None:
        """Send SIGTERM and wait; return the exit code."""
        return self.process.stop(30) if self.process else None


class Scene:
    """The objects of one test on a shared cluster, with names that no other test uses."""

    def __init__(self, api: KubeApi) -> None:
        self.api = api
        self.name = f"e2e-{uuid.uuid4().hex[:8]}"
        self.namespace = self.name
        self._classes: list[str] = []
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})

    @property
    def claims_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"

    def storage_class(self, driver: str, name: str = "", **body: Any) -> str:
        """Create a StorageClass (or create it again after `delete_class`); return its full name."""
        full = f"{self.name}-{name or driver}"[:253]
        self.api.create(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": full},
                "provisioner": driver,
                **body,
            }
        )
        self._classes.append(full)
        return full

    def delete_class(self, full: str) -> None:
        self.api.delete(f"/apis/storage.k8s.io/v1/storageclasses/{full}")

    def secret(self, name: str, **data: str) -> None:
        """Create a Secret; its values are already in base64."""
        metadata = {"name": name, "namespace": self.namespace}
        self.api.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    def claim(self, name: str, storage_class: str, size: str = "1Gi", **body: Any) -> JsonObject:
        """Create a claim; fields of its metadata and spec can be given."""
        metadata = {"name": name, "namespace": self.namespace, **body.pop("metadata", {})}
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": size}},
            **body,
        }
        return self.api.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": metadata,
                "spec": spec,
            }
        )

    def get(self, name: str) -> JsonObject | None:
        return self.api.find(f"{self.claims_path}/{name}")

    def claims(self) -> dict[str, JsonObject]:
        return {one["metadata"]["name"]: one for one in self.api.items(self.claims_path)}

    def annotate(self, name: str, **annotations: str | None) -> None:
        """Set annotations; None removes an annotation."""
        self.api.patch(f"{self.claims_path}/{name}", {"metadata": {"annotations": annotations}})

    def select_node(self, name: str, node: str) -> None:
        self.annotate(name, **{ANN_SELECTED_NODE: node})

    def delete(self, name: str) -> None:
        self.api.delete(f"{self.claims_path}/{name}")

    def volume(self, name: str) -> JsonObject | None:
        return self.api.find(f"/api/v1/persistentvolumes/{name}")

    def volume_of(self, claim: JsonObject) -> JsonObject | None:
        """Return the PV that belongs to the claim by name (P-121)."""
        return self.volume(f"pvc-{claim['metadata']['uid']}")

    def volumes(self) -> list[JsonObject]:
        """Return the PVs whose claim is in this namespace."""
        return [
            one
            for one in self.api.items("/api/v1/persistentvolumes")
            if (one["spec"].get("claimRef") or {}).get("namespace") == self.namespace
        ]

    def events(self, name: str, *, ours: bool = True) -> list[JsonObject]:
        """Return the events on one claim; with `ours`, without those of the cluster's own PV
        controller."""
        found = self.api.events_of(self.namespace, name)
        foreign = {"persistentvolume-controller"} if ours else set()
        return [one for one in found if one["source"].get("component") not in foreign]

    def reasons(self, name: str) -> set[str]:
        return {one["reason"] for one in self.events(name)}

    def wait_bound(self, *names: str, timeout_seconds: float = 60) -> dict[str, JsonObject]:
        """Wait until all claims (default: every claim of the namespace) are Bound; return them."""

        def all_bound() -> dict[str, JsonObject] | None:
            found = self.claims()
            chosen = {name: found.get(name, {}) for name in names or found}
            phases = {name: _phase(one) for name, one in chosen.items()}
            waiting = [name for name, phase in phases.items() if phase != "Bound"]
            if waiting:
                raise AssertionError(f"{len(waiting)} of {len(chosen)} not Bound: {waiting[:5]}")
            return chosen

        wait_until(all_bound, timeout_seconds, "claims are Bound", interval_seconds=0.2)
        return all_bound() or {}

    def wait_event(self, name: str, text: str, timeout_seconds: float = 30) -> JsonObject:
        """Wait until an event of csi-fleet on the claim contains the text; return the event."""

        def find() -> JsonObject | None:
            found = self.events(name)
            for one in found:
                if text in one["message"]:
                    return one
            raise AssertionError(f"only {[(one['reason'], one['message'][:300]) for one in found]}")

        found = wait_until(find, timeout_seconds, f"event {text!r} on {name}")
        assert found is not None
        return found

    def wait_gone(self, timeout_seconds: float = 60) -> None:
        """Wait until no volume of this namespace is left."""
        wait_until(lambda: not self.volumes(), timeout_seconds, "volumes are gone")

    def clean_up(self, is_served: Callable[[], bool] = lambda: True) -> None:
        """Remove everything, even if no controller is left to remove the finalizers.

        Args:
            is_served: True if a running csi-fleet should remove the finalizers.
        """
        for name in self.claims():
            self.delete(name)
        deadline = time.monotonic() + 15
        while is_served() and self.volumes() and time.monotonic() < deadline:
            time.sleep(0.1)
        for path in [
            *(f"{self.claims_path}/{name}" for name in self.claims()),
            *(f"/api/v1/persistentvolumes/{one['metadata']['name']}" for one in self.volumes()),
        ]:
            with suppress(KubeApiError):
                self.api.delete(path)
                self.api.patch(path, {"metadata": {"finalizers": None}})
        for name in self._classes:
            self.delete_class(name)
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")


def is_running_here() -> bool:
    """Return True if a part of csi-fleet is running that this process has started."""
    return any("workers" in _names(pid) for pid in _children(os.getpid()))


def _phase(claim: Mapping[str, Any]) -> str:
    return str((claim.get("status") or {}).get("phase", ""))


def _children(pid: int) -> list[int]:
    found = list[int]()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        # This thread has ended meanwhile, and its children have another parent now.
        with suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _names(pid: int) -> list[str]:
    """Return the arguments of a started part, or the words of a forked one's name; Valkey counts
    as Redis."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        command = Path(f"/proc/{pid}/comm").read_text().replace("valkey-", "redis-")
        return arguments + command.split()
    except OSError:
        return []
