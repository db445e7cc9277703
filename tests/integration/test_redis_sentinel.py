"""k8s/components/redis-sentinel: its scripts run as real processes, its manifests agree."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from tests.support.kustomize import accumulate, containers, render
from tests.support.processes import Process, free_port, start_process
from tests.support.redis_server import is_as_shipped
from tests.support.waiting import wait_until
from workers.config.settings import RedisSettings
from workers.errors import QueueUnavailable
from workers.queue.connection import connect, redis_errors

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "k8s" / "base" / "redis"
COMPONENT = ROOT / "k8s" / "components" / "redis-sentinel"
COUNT = 3


@dataclass
class Nodes:
    """Three servers and three sentinels on loopback, started as the pods start them."""

    binary: str
    directory: Path
    ports: list[int] = field(default_factory=lambda: [free_port() for _ in range(COUNT)])
    sentinels: list[int] = field(default_factory=lambda: [free_port() for _ in range(COUNT)])
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def secrets(self) -> Path:
        return self.directory / "secrets"

    @property
    def settings(self) -> RedisSettings:
        """Return a worker's settings."""
        hosts = ",".join(f"localhost:{port}" for port in self.sentinels)
        return RedisSettings(
            url=f"sentinel://{hosts}/csi-fleet?ssl_ca_certs={self.secrets / 'ca.crt'}",
            username="worker",
            password=(self.secrets / "worker").read_text().strip(),
            sentinel_username="client",
            sentinel_password=(self.secrets / "sentinel").read_text().strip(),
        )

    def make_secrets(self) -> None:
        subprocess.run(["sh", ROOT / "k8s/make-secrets.sh", self.secrets], check=True)

    def start(self):
        self.make_secrets()
        for number in range(COUNT):
            self.start_node(number)
            self.start_sentinel(number)
        return self

    def start_node(self, number: int, *, is_empty: bool = False) -> None:
        data = self.directory / f"data-{number}"
        if is_empty:
            shutil.rmtree(data)
        self._start(f"node-{number}", data, ["start-node.sh"], self.ports[number])

    def start_sentinel(self, number: int) -> None:
        data = self.directory / f"sentinel-{number}"
        self._start(f"sentinel-{number}", data, ["start-sentinel.sh"], self.sentinels[number])

    def master(self) -> int:
        """Return the number of the node that the sentinels name as master."""
        script = COMPONENT / "redis" / "ask-sentinels.sh"
        found = subprocess.run(
            ["sh", script, self._config(0), self.secrets, "get-master-addr-by-name"],
            env=self._environment(0),
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        return self.ports.index(int(found.rpartition(":")[2]))

    def is_complete(self) -> bool:
        """Return True if every sentinel knows the others and both replicas, which takes 10 s."""
        settings = self.settings
        for port in self.sentinels:
            with redis.Redis(
                host="localhost",
                port=port,
                username=settings.sentinel_username,
                password=settings.sentinel_password,
                ssl=True,
                ssl_ca_certs=str(self.secrets / "ca.crt"),
                decode_responses=True,
            ) as client:
                state = client.sentinel_masters()["csi-fleet"]
            if (state["num-slaves"], state["num-other-sentinels"]) != (COUNT - 1, COUNT - 1):
                return False
        return True

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def _start(self, name: str, data: Path, script: list[str], port: int) -> None:
        number = int(name[-1])
        data.mkdir(exist_ok=True)
        extra = COMPONENT / "redis"
        command = ["sh", extra / script[0], self._config(number), extra, self.secrets]
        if name.startswith("sentinel"):
            command.append(data)
        self.processes[name] = start_process(
            name,
            [str(part) for part in command],
            log=self.directory / f"{name}.log",
            env=self._environment(number),
        )

    def _config(self, number: int) -> Path:
        """Copy the base's folder and adapt its paths to this machine."""
        folder = self.directory / f"config-{number}"
        if not folder.exists():
            shutil.copytree(BASE, folder)
            text = (folder / "redis.conf").read_text()
            text = text.replace("/run/csi-fleet/redis-tls", str(self.secrets))
            text = text.replace("/data", str(self.directory / f"data-{number}"))
            (folder / "redis.conf").write_text(text)
        return folder

    def _environment(self, number: int) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{Path(self.binary).parent}:{os.environ['PATH']}",
            "NODE": f"localhost:{self.ports[number]}",
            "SENTINEL": f"localhost:{self.sentinels[number]}",
            "NODES": " ".join(f"localhost:{port}" for port in self.ports),
            "SENTINELS": " ".join(f"localhost:{port}" for port in self.sentinels),
            "MASTER_NAME": "csi-fleet",
        }


@pytest.fixture
def new_nodes(redis_binary, tmp_path):
    """Return nodes that have not been started yet."""
    if not is_as_shipped(redis_binary):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("needs Redis 7")
    nodes = Nodes(redis_binary, tmp_path)
    try:
        yield nodes
    finally:
        nodes.stop()


@pytest.fixture
def nodes(new_nodes):
    new_nodes.start()
    wait_until(new_nodes.is_complete, 60, "sentinels know each other and the replicas")
    return new_nodes


def test_the_first_node_of_all_waits_for_nobody(new_nodes):
    """The first node starts without a promotion, although
    sentinels that run already name it as the master.
    """
    new_nodes.make_secrets()
    for number in range(COUNT):
        new_nodes.start_sentinel(number)
    wait_until(lambda: new_nodes.master() == 0, 60, "sentinels answer")
    new_nodes.start_node(0)
    wait_until(lambda: "Ready to accept" in new_nodes.log("node-0"), 50, "it serves")
    assert "waiting for a promotion" not in new_nodes.log("node-0")


def takes_writes(client, value):
    try:
        with redis_errors():
            return bool(client.set("csifleet:epoch", value))
    except QueueUnavailable:
        return False


def test_a_worker_writes_over_a_fail_over_and_the_dead_node_comes_back_empty(nodes):
    """A worker's writes continue after a fail-over, and the dead node returns with an empty disk.

    The test uses the shipped users and TLS.
    """
    client = connect(nodes.settings.url_with_credentials())
    wait_until(lambda: takes_writes(client, "first"), 60, "a replica confirms the first write")
    before = nodes.master()
    wait_until(lambda: client.get("csifleet:epoch") == b"first", 10, "it is read")
    nodes.processes[f"node-{before}"].kill()
    # The node restarts at once with an empty disk, as by a kubelet. It must not become master
    # again.
    nodes.start_node(before, is_empty=True)
    wait_until(lambda: nodes.master() != before, 60, "another node is promoted")
    wait_until(lambda: takes_writes(client, "second"), 60, "the new master takes writes")
    wait_until(
        lambda: "MASTER <-> REPLICA sync: Finished" in nodes.log(f"node-{before}"),
        60,
        "the node is a replica",
    )
    assert "waiting for a promotion" in nodes.log(f"node-{before}")
    assert client.get("csifleet:epoch") == b"second"
    client.close()


def test_a_sentinel_that_lost_its_disk_learns_the_master_from_the_others(nodes):
    client = connect(nodes.settings.url_with_credentials())
    wait_until(lambda: takes_writes(client, "first"), 60, "a replica confirms the first write")
    before = nodes.master()
    nodes.processes[f"node-{before}"].kill()
    wait_until(lambda: nodes.master() != before, 60, "another node is promoted")
    lost = (before + 1) % COUNT
    nodes.processes[f"sentinel-{lost}"].kill()
    shutil.rmtree(nodes.directory / f"sentinel-{lost}")
    nodes.start_sentinel(lost)
    config = nodes.directory / f"sentinel-{lost}" / "sentinel.conf"
    wanted = f"sentinel monitor csi-fleet localhost {nodes.ports[nodes.master()]} 2"
    wait_until(lambda: config.exists() and wanted in config.read_text(), 30, "it monitors it")
    client.close()


@pytest.mark.parametrize("overlay", ["prod-central", "prod-sidecar"])
def test_every_client_of_ours_asks_the_sentinels(overlay):
    """Every client uses the sentinels with their user
    and password, and the single Redis is removed.
    """
    objects = accumulate(COMPONENT, render(ROOT / "k8s" / "overlays" / overlay))
    kinds = {one["kind"] for one in objects if one["metadata"]["name"] == "redis"}
    assert kinds == {"StatefulSet", "PodDisruptionBudget", "NetworkPolicy"}
    clients = [
        container
        for item in objects
        if item["metadata"].get("namespace") == "csi-fleet" and item["kind"] == "Deployment"
        for container in containers(item)
    ]
    assert clients
    for container in clients:
        env = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert env["CSI_FLEET_REDIS_URL"].startswith("sentinel://redis-0.redis-nodes.csi-fleet.svc")
        assert env["CSI_FLEET_REDIS_SENTINEL_USERNAME"] == "client"
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert env["CSI_FLEET_REDIS_SENTINEL_PASSWORD_FILE"].startswith(mounts["redis-sentinel"])
