"""Two watchers and three workers with many drivers, scraped by a real Prometheus, for tests that
break them.

```
with Monitored(directory, plane, redis_binary, ["steady", "full", ...]) as world:
    world.host.set_mode(world.driver("full"), mode="exhausted")
    world.prometheus.firing()
```
Each role is a driver of its own with a StorageClass of its own, so that what an alert or a panel
says can be told to belong to it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Self

import redis
import requests
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support import plugins
from tests.support.controlplane import ControlPlane
from tests.support.driver_host import DriverHost
from tests.support.fleet import API_RATE, ROOT, START_SECONDS, Scene, environment, program
from tests.support.processes import Process, free_port, start_process
from tests.support.prometheus import Prometheus
from tests.support.proxy import Proxy, kubeconfig_through
from tests.support.redis_server import RedisServer
from tests.support.running import Running
from tests.support.tool import Tool
from tests.support.waiting import wait_until
from workers.queue.names import NAMES
from workers.queue.seal import new_key

WATCHERS, WORKERS = ("watcher-0", "watcher-1"), ("worker-0", "worker-1", "worker-2")
# In an installation, a scrape may take 10 s, so that is the limit here too.
SCRAPE_LIMIT_SECONDS = 10.0
PLUGINS = (plugins.ScriptedProvisioner, plugins.Broken)


@dataclass(frozen=True, slots=True)
class Request:
    """One request from a csi-fleet process to the API server, as the audit log recorded it."""

    at: float
    verb: str
    resource: str
    code: str


class Monitored(Running):
    """All processes except the control plane, which must write an audit log.

    Args:
        directory: the folder for all files; created if it does not exist.
        plane: the control plane in which claims are created.
        redis_binary: the path of the Redis server.
        roles: the short names of the drivers.
        limits: the number of concurrent creations by role, for drivers with their own limit.
        rules: the content of a file with alerts.
    """

    # Provisioners that are written in Python, in addition to the drivers.
    kinds: ClassVar[Sequence[type[plugins.ScriptedProvisioner]]] = PLUGINS
    # Longer than a story, so that a hanging call does not fail.
    create_timeout = "600s"
    pace: ClassVar[Sequence[str]] = (
        "--lease-ttl=4s", "--retry-interval-start=200ms", "--retry-interval-max=1s"
    )  # fmt: skip

    def __init__(
        self,
        directory: Path,
        plane: ControlPlane,
        redis_binary: str,
        roles: Sequence[str],
        limits: Mapping[str, int],
        rules: Mapping[str, Any],
    ) -> None:
        self.directory = directory
        self.plane = plane
        self.tag = f"t{uuid.uuid4().hex[:6]}"
        self.roles, self.limits = list(roles), dict(limits)
        # A socket's path has at most 107 bytes, and pytest's folders may be longer.
        names = [self.driver(role) for role in self.roles]
        publishing = [self.driver(role) for role in self.roles if role == "attach"]
        self.host = DriverHost(directory.parent / self.tag, names, publishing=publishing)
        (directory / "redis").mkdir(parents=True)
        self.redis = RedisServer(redis_binary, directory / "redis")
        self.ports = {name: free_port() for name in (*WATCHERS, *WORKERS)}
        targets = {
            "watcher": [self.ports[name] for name in WATCHERS],
            "worker": [self.ports[name] for name in WORKERS],
        }
        self.prometheus = Prometheus(directory / "prometheus", targets, rules)
        self.processes: dict[str, Process] = {}
        self._env = environment(
            CSI_FLEET_RECORDS_KEY=new_key(),
            TEST_PLUGIN_DIR=str(directory / "plugins"),
            TEST_PLUGIN_TAG=self.tag,
        )
        self._way: Proxy | None = None
        self.api: Any = None
        self.client: Any = None

    def driver(self, role: str) -> str:
        """Return the name of a role's driver."""
        return f"{role}.{self.tag}.example.org"

    def role(self, subject: str) -> str:
        """Return the role to which a driver, a class or a scraped address belongs."""
        for name, port in self.ports.items():
            if subject == f"127.0.0.1:{port}":
                return name
        subject = subject.removeprefix(f"{self.scene.name}-").removeprefix(f"{self.tag}.")
        return subject.removeprefix("example.com/").removesuffix(f".{self.tag}.example.org")

    def start(self) -> Self:
        self.api = self.plane.api()
        self.scene = Scene(self.api)
        folder = self.directory / "plugins"
        self.plugins = {kind.kind: kind(folder, self.tag) for kind in self.kinds}
        for one in self.plugins.values():
            one.script.namespace = self.scene.namespace
        self.redis.start()
        self.client = redis.Redis.from_url(self.redis.url, decode_responses=True)
        self.client.config_set("maxmemory", str(2**30))
        self.tool = Tool(self.plane.kubeconfig, self.redis.url)
        self.host.start()
        self.serve(*self.roles)
        self.classes = {
            role: self.scene.storage_class(self.driver(role), role) for role in self.roles
        }
        for kind, one in self.plugins.items():
            self.classes[kind] = self.scene.storage_class(one.name, kind)
        self._kubeconfig = self.directory / "kubeconfig-1"
        self._way = kubeconfig_through(Path(self.plane.kubeconfig), self._kubeconfig)
        for name in self.ports:
            self.run(name)
        for name in self.ports:
            wait_until(lambda n=name: self.is_ready(n), START_SECONDS, f"{name} is ready")  # type: ignore[misc]
        self.prometheus.start()
        return self

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
        ends = [self.prometheus.stop, self.host.stop, self.redis.kill, self._cut]
        ends += [one.close for one in (self.client, self.api) if one is not None]
        for end in ends:
            with suppress(Exception):
                end()

    # Processes.

    def serve(self, *roles: str, **elsewhere: str) -> None:
        """Write the drivers file: drivers of the host, and others by endpoint."""
        entries = [
            {"name": self.driver(role), "endpoint": self.host.address(self.driver(role))}
            | (
                {"limits": {"create": {"concurrency": self.limits[role]}}}
                if role in self.limits
                else {}
            )
            for role in roles
        ]
        entries += [{"name": self.driver(k), "endpoint": v} for k, v in elsewhere.items()]
        document = {"defaults": {"timeouts": {"create": self.create_timeout}}, "drivers": entries}
        draft = self.directory / "drivers.draft"
        draft.write_text(yaml.safe_dump(document))
        draft.replace(self.directory / "drivers.yaml")

    def run(self, name: str) -> None:
        """Start one of the five processes, also after it was killed."""
        if name in self.processes:
            self.processes[name].kill()  # reaps the killed process too
        state = self.directory / name
        state.mkdir(mode=0o700, exist_ok=True)
        for old in state.glob("*.ready"):
            old.unlink()
        kubeconfig = self._kubeconfig if name == "watcher-1" else self.plane.kubeconfig
        common = [
            *(f"--kubeconfig={kubeconfig}", f"--redis-url={self.redis.url}", *API_RATE),
            *(f"--state-dir={state}", f"--http-endpoint=127.0.0.1:{self.ports[name]}"),
            *("--logging-format=json", "-v=4"),
        ]
        if name in WATCHERS:
            command = [sys.executable, "-m", "watcher", *common]
        else:
            command = [
                *(*program(), "worker", *common),
                *self.pace,
                "--controllers=provisioner,attacher",
                f"--drivers-file={self.directory / 'drivers.yaml'}",
                *(f"--provisioner=tests.support.plugins:{one.__name__}" for one in self.kinds),
            ]
        self.processes[name] = start_process(
            name, command, log=self.directory / f"{name}.log", env=self._env, cwd=ROOT
        )

    def is_ready(self, name: str) -> bool:
        """Return True if the process is ready; raise RuntimeError if it has ended."""
        process = self.processes[name]
        if not process.is_running():
            raise RuntimeError(f"{name} ended:\n{process.log_tail(30)}")
        return any((self.directory / name).glob("*.ready"))

    def signal(self, number: signal.Signals, *names: str) -> None:
        """Send SIGSTOP, SIGCONT or SIGKILL to some of the processes."""
        for name in names:
            self.processes[name].signal(number)

    def attach(self, role: str, volume: str) -> None:
        """Create a VolumeAttachment for one volume and a node of that role's driver."""
        node, driver = f"node-{self.tag}", self.driver(role)
        storage, metadata = "storage.k8s.io/v1", {"name": node}
        drivers = [{"name": driver, "nodeID": node, "topologyKeys": []}]
        self.api.create(
            {"apiVersion": storage, "kind": "CSINode", "metadata": metadata,
             "spec": {"drivers": drivers}}
        )  # fmt: skip
        source = {"persistentVolumeName": volume}
        self.api.create(
            {"apiVersion": storage, "kind": "VolumeAttachment", "metadata": metadata,
             "spec": {"attacher": driver, "nodeName": node, "source": source}}
        )  # fmt: skip

    def cut_api(self) -> None:
        """Stop the proxy through which the second watcher reaches the API server."""
        self._cut()

    def mend_api(self) -> None:
        """Start the proxy again on the same port."""
        assert self._way is not None
        port, self._way = self._way.port, Proxy("127.0.0.1", self.plane.ports.api)
        self._way.port = port
        self._way.start()

    def _cut(self) -> None:
        if self._way is not None:
            self._way.stop()

    # The true state, from sources other than the exported metrics.

    def scrape(self, name: str) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Return the metrics of one process, read within a scrape's time limit."""
        url = f"http://127.0.0.1:{self.ports[name]}/metrics"
        text = requests.get(url, timeout=SCRAPE_LIMIT_SECONDS).text
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def wait_scraped(self) -> None:
        """Wait until Prometheus has the current metrics of every process, including first
        counts."""
        since = time.time()

        def scraped() -> bool:
            times = self.prometheus.query("timestamp(up)").values()
            return sum(at >= since for at in times) == len(self.ports)

        wait_until(scraped, START_SECONDS, "every process is scraped")

    def log_lines(self, message: str, since: float, until: float) -> list[dict[str, Any]]:
        """Return the lines of the workers' logs with that message, between two times."""
        return [
            line
            for name in WORKERS
            for line in self._lines(self.directory / f"{name}.log")
            if line.get("msg", "").startswith(message) and since <= line["ts"] / 1000 <= until
        ]

    def requests_made(self, since: float, until: float) -> list[Request]:
        """Return the requests of csi-fleet's processes to the API server, without watches."""
        found = []
        for event in self._lines(self.plane.audit_log):
            if event.get("stage") != "ResponseComplete" or event["verb"] == "watch":
                continue
            if not event.get("userAgent", "").startswith("csi-fleet"):
                continue
            at = datetime.fromisoformat(event["stageTimestamp"]).timestamp()
            if not since <= at <= until:
                continue
            target = event.get("objectRef") or {}
            verb = event["verb"] if target.get("resource") else "list"
            code = str(event["responseStatus"]["code"])
            found.append(Request(at, verb, target.get("resource", "discovery"), code))
        return found

    def entries(self, name: str) -> int:
        """Return the number of fields in the hash of that name, or in those of all drivers
        together."""
        entry = NAMES[name]
        keys = self.client.scan_iter(f"{entry.full}*") if entry.is_family else [entry.full]
        return sum(int(self.client.hlen(key)) for key in keys)

    def keys_by_state(self) -> dict[str, int]:
        """Return the number of keys in each state, counted in the structures of Redis."""
        found = dict.fromkeys(("ready", "retry", "running"), 0)
        for state, family in zip(found, ("ready", "retry", "leased"), strict=True):
            for name in self.client.scan_iter(f"csifleet:{family}:*", count=1000):
                found[state] += int(self.client.zcard(name))
        found["delayed"] = int(self.client.zcard("csifleet:delayed"))
        found["blocked"] = int(self.client.hlen("csifleet:blocked"))
        return found

    def running_on(self, name: str, role: str) -> int:
        """Return the number of keys of a role's driver that this worker holds."""
        pid = str(self.processes[name].pid)
        leases: dict[Any, Any] = self.client.hgetall("csifleet:leases")
        return sum(
            self.driver(role) in key and lease.split(" ")[1].split(":")[-2] == pid
            for key, lease in leases.items()
        )

    @staticmethod
    def _lines(path: Path) -> Iterator[dict[str, Any]]:
        for line in path.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    yield found


def is_alive(process: Process) -> bool:
    """Return True if the process could answer: it runs and is not stopped."""
    with suppress(OSError):
        os.kill(process.pid, 0)
        return (
            "T" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        )
    return False
