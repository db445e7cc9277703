"""A Redis with replicas and three sentinels, all real processes on loopback.

```
with ReplicatedRedis(binary, folder) as fleet:
    connect(fleet.url)
    fleet.cut_replicas()            # from here on the replicas lag
    fleet.kill_master()             # SIGKILL; the sentinels promote a replica within seconds
```
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import redis

from tests.support.processes import Process, free_port, start_process
from tests.support.running import Running
from tests.support.waiting import wait_until

MASTER = "csi-fleet"
SENTINELS = 3


@dataclass(slots=True)
class Node:
    """One server or sentinel."""

    port: int
    process: Process | None = None


@dataclass
class ReplicatedRedis(Running):
    """A master with replicas and sentinels; their files are in `directory`.

    Args:
        binary: a redis-server; sentinels are the same program.
        replicas: at least one.
        password: of the servers' default user, "" for none.
        sentinel_password: of the sentinels' default user, "" for none.
        tls: folder with ca.pem, tls.pem and tls.key for localhost; None for plain text.
        options: further arguments of every server.
    """

    binary: str
    directory: Path
    replicas: int = 1
    password: str = ""
    sentinel_password: str = ""
    tls: Path | None = None
    options: tuple[str, ...] = ()
    nodes: list[Node] = field(init=False, default_factory=list)
    sentinels: list[Node] = field(init=False, default_factory=list)

    @property
    def url(self) -> str:
        """Return the URL for --redis-url, without a login."""
        hosts = ",".join(f"{self._host}:{node.port}" for node in self.sentinels)
        query = f"?ssl_ca_certs={self.tls / 'ca.pem'}" if self.tls else ""
        return f"sentinel://{hosts}/{MASTER}{query}"

    def start(self) -> Self:
        """Start all processes, and wait until every sentinel knows all others and the replicas
        are synchronised."""
        self.nodes = [Node(free_port()) for _ in range(1 + self.replicas)]
        for node in self.nodes:
            self._start_server(node)
        self.sentinels = [Node(free_port()) for _ in range(SENTINELS)]
        for node in self.sentinels:
            self._start_sentinel(node)
        wait_until(self._is_complete, 30, "sentinels know each other and the replicas")
        return self

    def stop(self) -> None:
        """Kill all processes (SIGKILL); safe to repeat."""
        for node in (*self.sentinels, *self.nodes):
            if node.process is not None:
                node.process.kill()

    def master(self) -> Node:
        """Return the master, as the sentinels report it."""
        with self.client(self.sentinels[0], is_sentinel=True) as client:
            _, port = client.sentinel_get_master_addr_by_name(MASTER)
        return next(node for node in self.nodes if node.port == port)

    def cut_replicas(self) -> None:
        """Let no replica receive anything more: stop the replicas and close their connections."""
        master = self.master()
        for node in self.nodes:
            if node is not master:
                _signal(node, signal.SIGSTOP)
        with self.client(master) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def kill_master(self) -> Node:
        """Kill the master; stopped replicas continue with the data that they have.

        Returns the dead server.
        """
        master = self.master()
        assert master.process is not None
        master.process.kill()
        for node in self.nodes:
            _signal(node, signal.SIGCONT)
        return master

    def freeze_master(self) -> Node:
        """Stop the master (SIGSTOP): connections stay open, but it does not answer.

        Returns that server.
        """
        master = self.master()
        _signal(master, signal.SIGSTOP)
        return master

    def wait_promoted(self, before: Node, timeout_seconds: float = 60) -> Node:
        """Wait until the sentinels name another master than before; return the new master."""
        wait_until(lambda: self.master() is not before, timeout_seconds, "a replica is promoted")
        return self.master()

    def client(self, node: Node, *, is_sentinel: bool = False) -> redis.Redis:
        """Return a plain client of one process."""
        options: dict[str, Any] = (
            {"ssl": True, "ssl_ca_certs": self.tls / "ca.pem"} if (self.tls) else {}
        )
        return redis.Redis(
            host=self._host,
            port=node.port,
            password=(self.sentinel_password if is_sentinel else self.password) or None,
            socket_timeout=5,
            decode_responses=True,
            **options,
        )

    @property
    def _host(self) -> str:
        return "localhost" if self.tls else "127.0.0.1"

    def _is_complete(self) -> bool:
        for node in self.sentinels:
            with self.client(node, is_sentinel=True) as client:
                state: Any = client.sentinel_master(MASTER)
            if state["num-other-sentinels"] != SENTINELS - 1:
                return False
            if state["num-slaves"] != self.replicas:
                return False
        with self.client(self.nodes[0]) as client:
            found: Any = client.info("replication")
        states = [found.get(f"slave{number}", {}) for number in range(self.replicas)]
        return all(state.get("state") == "online" for state in states)

    def _start_server(self, node: Node) -> None:
        folder = self.directory / f"redis-{node.port}"
        folder.mkdir(parents=True)
        lines = [
            "bind 127.0.0.1 -::1" if self.tls else "bind 127.0.0.1",
            *self._listen(node.port),
            f"dir {folder}",
            'save ""',
            "repl-diskless-sync-delay 0",
            *(
                [f"requirepass {self.password}", f"masterauth {self.password}"]
                * bool(self.password)
            ),
        ]
        if self.tls:
            lines += [f"replica-announce-ip {self._host}", f"replica-announce-port {node.port}"]
        if node is not self.nodes[0]:
            lines.append(f"replicaof {self._host} {self.nodes[0].port}")
        config = folder / "redis.conf"
        config.write_text("\n".join(lines) + "\n")
        node.process = start_process(
            f"redis-{node.port}", [self.binary, str(config), *self.options], log=folder / "log"
        )
        wait_until(lambda: self._answers(node, is_sentinel=False), 15, "redis-server answers")

    def _start_sentinel(self, node: Node) -> None:
        folder = self.directory / f"sentinel-{node.port}"
        folder.mkdir(parents=True)
        lines = [
            "bind 127.0.0.1 -::1" if self.tls else "bind 127.0.0.1",
            *self._listen(node.port),
            f"dir {folder}",
            *(
                ["sentinel resolve-hostnames yes", "sentinel announce-hostnames yes"]
                * bool(self.tls)
            ),
            f"sentinel monitor {MASTER} {self._host} {self.nodes[0].port} 2",
            f"sentinel down-after-milliseconds {MASTER} 1000",
            f"sentinel failover-timeout {MASTER} 5000",
        ]
        if self.password:
            lines.append(f"sentinel auth-pass {MASTER} {self.password}")
        if self.sentinel_password:
            lines.append(f"requirepass {self.sentinel_password}")
            lines.append(f"sentinel sentinel-pass {self.sentinel_password}")
        config = folder / "sentinel.conf"
        config.write_text("\n".join(lines) + "\n")
        node.process = start_process(
            f"sentinel-{node.port}", [self.binary, str(config), "--sentinel"], log=folder / "log"
        )
        wait_until(lambda: self._answers(node, is_sentinel=True), 15, "a sentinel answers")

    def _listen(self, port: int) -> list[str]:
        if self.tls is None:
            return [f"port {port}"]
        return [
            "port 0",
            f"tls-port {port}",
            f"tls-cert-file {self.tls / 'tls.pem'}",
            f"tls-key-file {self.tls / 'tls.key'}",
            f"tls-ca-cert-file {self.tls / 'ca.pem'}",
            "tls-auth-clients no",
            "tls-replication yes",
        ]

    def _answers(self, node: Node, *, is_sentinel: bool) -> bool:
        with self.client(node, is_sentinel=is_sentinel) as client:
            return bool(client.ping())


def _signal(node: Node, number: int) -> None:
    if node.process is not None:
        node.process.signal(number)
