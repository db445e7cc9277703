"""A whole system of real processes for chaos tests, and the conditions that must hold afterwards.

`System` runs Redis, a driver, two watchers, workers and beat with its own control plane, and
restarts processes that have died, as kubelet would. `leftovers` reads every structure of the queue.
"""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import redis

from tests.support.controlplane import ControlPlane
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import environment, program
from tests.support.kube_api import KubeApi
from tests.support.processes import Process, start_process
from tests.support.proxy import Proxy, kubeconfig_through
from tests.support.queue_state import is_left
from tests.support.redis_fixtures import undeclared_keys
from tests.support.redis_server import RedisServer
from tests.support.running import Running
from tests.support.slow_lists import SlowLists
from tests.support.waiting import let_pass, wait_until
from tests.support.wallclock import WallClock
from workers.constants import ANN_RECORD_DRIVER
from workers.queue.copies import NAME_PREFIX
from workers.queue.names import NAMES, PREFIX
from workers.queue.records import peek

ROOT = Path(__file__).resolve().parents[2]
INTENTS = "csi-fleet.io/intent=true"
RESTART_SECONDS = 1.0


@dataclass
class Part:
    """One process of csi-fleet, which is restarted after it has ended."""

    name: str
    command: list[str]
    log: Path
    env: Mapping[str, str]
    process: Process | None = None
    ended_at: float = 0.0
    wanted: bool = True
    stopped_until: float = 0.0

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_running()

    def start(self) -> None:
        self.process = start_process(self.name, self.command, log=self.log, env=self.env, cwd=ROOT)
        self.ended_at = 0.0

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def tend(self, now: float) -> None:
        """Restart the process if it ended a moment ago; continue it if it was stopped for long
        enough."""
        if self.stopped_until and now >= self.stopped_until:
            self.stopped_until = 0.0
            if self.process is not None:
                self.process.signal(signal.SIGCONT)
        if self.wanted and not self.is_running:
            self.ended_at = self.ended_at or now
            if now >= self.ended_at + RESTART_SECONDS:
                self.start()


@dataclass
class System(Running):
    """All processes except the control plane, which is used by several systems one after the
    other."""

    directory: Path
    plane: ControlPlane
    redis_binary: str
    workers: int = 3
    watchers: int = 2
    appendonly: bool = False
    flags: tuple[str, ...] = ()
    worker_flags: tuple[str, ...] = ()
    controllers: str = "provisioner"
    driver_arguments: tuple[str, ...] = ()
    namespace: str = "default"
    parts: dict[str, Part] = field(default_factory=dict)
    driver_started_at: float = 0.0
    undeclared: set[str] = field(default_factory=set)
    is_proxied: bool = False
    has_clocks: bool = False
    has_slow_lists: bool = False
    lists: dict[str, SlowLists] = field(default_factory=dict)
    clocks: dict[str, WallClock] = field(default_factory=dict)
    api_ways: dict[str, Proxy] = field(default_factory=dict)
    redis_ways: dict[str, Proxy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.driver = DirectoryDriver(arguments=self.driver_arguments)
        clock = self.clock_env("redis")
        self.redis = RedisServer(
            self.redis_binary, self.directory, appendonly=self.appendonly, env=clock
        )
        self.api = KubeApi(self.plane.kubeconfig)
        self._ended = threading.Event()
        self._tender: threading.Thread | None = None
        self._lock = threading.RLock()

    def start(self) -> Self:
        self.redis.start()
        self.driver.start()
        controllers = f"--controllers={self.controllers}"
        common = [f"--namespace={self.namespace}", controllers, *self.flags]
        serve = [f"--csi-address={self.driver.address}", "--lease-ttl=4s", *self.worker_flags]
        for index in range(self.watchers):
            name = f"watcher-{index}"
            self.add(name, [sys.executable, "-m", "watcher"], self.ways(name) + common)
        for index in range(self.workers):
            name = f"worker-{index}"
            self.add(name, [*program(), "worker"], self.ways(name) + common + serve)
        self.add("beat", [*program(), "beat"], [f"--redis-url={self.redis.url}", controllers])
        for part in self.parts.values():
            part.start()
        wait_until(
            lambda: all(list((self.directory / name).glob("*.ready")) for name in self.workers_()),
            90,
            "all workers are ready",
        )
        self._tender = threading.Thread(target=self._tend, daemon=True)
        self._tender.start()
        return self

    def add(self, name: str, command: Sequence[str], flags: Sequence[str]) -> None:
        state = self.directory / name
        state.mkdir(exist_ok=True)
        self.parts[name] = Part(
            name,
            [*command, *flags, f"--state-dir={state}"],
            self.directory / f"{name}.log",
            environment(PYTHONFAULTHANDLER="1", **self.clock_env(name)),
        )

    def clock_env(self, name: str) -> Mapping[str, str]:
        """Return the environment for a process; with `has_clocks`, each process has its own wall
        clock."""
        if not self.has_clocks:
            return {}
        return self.clocks.setdefault(name, WallClock(self.directory / f"{name}.clock")).env

    def ways(self, name: str) -> list[str]:
        """Return flags with the addresses of the API server and Redis, through the process's own
        proxies."""
        kubeconfig, url = Path(self.plane.kubeconfig), self.redis.url
        if self.is_proxied:
            path = self.directory / f"{name}.kubeconfig"
            self.api_ways[name] = kubeconfig_through(kubeconfig, path)
            if self.has_slow_lists and name.startswith("watcher-"):
                lists = SlowLists(self.plane.directory, self.api_ways[name].port, path)
                self.lists[name] = lists.start()
            way = self.redis_ways[name] = Proxy("127.0.0.1", self.redis.port).start()
            kubeconfig, url = path, f"redis://127.0.0.1:{way.port}/0"
        return [f"--kubeconfig={kubeconfig}", f"--redis-url={url}"]

    def workers_(self) -> list[str]:
        return [name for name in self.parts if name.startswith("worker-")]

    def watchers_(self) -> list[str]:
        return [name for name in self.parts if name.startswith("watcher-")]

    # Faults. Each method returns at once; what it stops is restarted automatically.

    def kill(self, name: str) -> None:
        self.parts[name].kill()

    def freeze(self, name: str, seconds: float) -> None:
        """Stop a process now and continue it later, so that it believes it still owns its
        leases."""
        part = self.parts[name]
        if part.process is not None and part.is_running:
            part.process.signal(signal.SIGSTOP)
            part.stopped_until = time.monotonic() + seconds

    def step_clock(self, name: str, seconds: int) -> None:
        """Set the wall clock of `redis` or another process; restarts do not reset it."""
        self.clocks[name].step(seconds)

    def restart_redis(self, *, is_empty: bool = False) -> None:
        self.redis.kill()
        if is_empty:
            shutil.rmtree(self.directory / "appendonlydir", ignore_errors=True)
        self.redis.start()

    def lose_writes(self, seconds: float) -> None:
        """Simulate a fail-over to a replica that lags, which loses the last writes.

        Clients see a server with another run id and older data.
        """
        data, then = self.directory / "appendonlydir", self.directory / "appendonlydir-then"
        shutil.copytree(data, then)
        let_pass(seconds)  # writes from here on are acknowledged, but not replicated
        self.redis.kill()
        shutil.rmtree(data)
        then.rename(data)
        self.redis.start()

    def flush_redis(self) -> None:
        with redis.Redis.from_url(self.redis.url) as client:
            client.flushall()

    def cut_connections(self) -> None:
        with redis.Redis.from_url(self.redis.url) as client:
            client.client_kill_filter(_type="normal", skipme=True)
            client.client_kill_filter(_type="pubsub", skipme=True)

    def restart_driver(self) -> None:
        self.driver.kill()
        self.driver_started_at = time.time()
        self.driver.start(wait=False)

    def restart_api_server(self) -> None:
        self.plane.kill("kube-apiserver")
        self.plane.restart("kube-apiserver")

    # Checking the result.

    def volumes(self) -> dict[str, dict[str, Any]]:
        """Return the PVs of the test's driver by name."""
        return {
            one["metadata"]["name"]: one
            for one in self.api.items("/api/v1/persistentvolumes")
            if (one["spec"].get("csi") or {}).get("driver") == self.driver.name
        }

    def handles(self) -> set[str]:
        return {one["spec"]["csi"]["volumeHandle"] for one in self.volumes().values()}

    def copies(self) -> list[str]:
        """Return the names of the ConfigMaps that hold intents, without those of earlier tests."""
        path = f"/api/v1/namespaces/{self.namespace}/configmaps"
        found = [one["metadata"] for one in self.api.items(path, labelSelector=INTENTS)]
        ours = self.driver.name
        return [
            one["name"]
            for one in found
            if one.get("annotations", {}).get(ANN_RECORD_DRIVER, ours) == ours
        ]

    def is_whole(self) -> bool:
        """Return True if all processes run, and each unfinished attempt has a living owner or a
        ConfigMap."""
        parts = self.parts.values()
        if not all(part.is_running and not part.stopped_until for part in parts):
            return False
        with redis.Redis.from_url(self.redis.url, decode_responses=True) as client:
            processes = set(client.zrange("csifleet:procs", 0, -1))
            # A dead process is listed until its entry expires: `<host>:<pid>:<random>`.
            pids = {str(part.process.pid) for part in parts if part.process is not None}
            processes = {name for name in processes if name.split(":")[-2] in pids}
            leases = [value.split(" ") for value in client.hvals("csifleet:leases")]
            records = {
                name: record
                for key in client.scan_iter("csifleet:intents:*")
                for name, record in client.hgetall(key).items()
            }
        locks = [lock for lease in leases if lease[1] in processes for lock in lease[4:]]
        held = {lock.partition(":")[2] for lock in locks}
        copied = {name.removeprefix(NAME_PREFIX) for name in self.copies()}
        stages = {name: (peek(text) or {}).get("stage") for name, text in records.items()}
        going = {name for name, stage in stages.items() if stage != "failed"}
        # Compare the uid in the names, because workers may use different name prefixes.
        kept = {name.partition("-")[2] for name in held | copied}
        lone = [name for name in going if name.partition("-")[2] not in kept]
        assert not lone, f"without owner: {sorted(lone)}"
        return len(processes) >= self.workers

    def stories(self, volume_ids: set[str]) -> list[str]:
        """Return the calls for some volumes, for the report of a failure."""
        found = []
        for call in self.driver.calls():
            if (
                set(call.volumes) & volume_ids
                or call.answer.get("volume", {}).get("volumeId") in volume_ids
                or call.answer.get("volume", {}).get("volume_id") in volume_ids
            ):
                at = f"{call.started_at:.2f} - {call.ended_at or 0:.2f}"
                found.append(f"{at} {call.method} {call.volumes} {call.code}")
        return found

    def note_undeclared(self) -> None:
        """Find Redis keys that names.py does not declare; `assert_at_rest` fails if there are
        any."""
        with suppress(redis.RedisError), redis.Redis.from_url(self.redis.url) as client:
            self.undeclared |= set(undeclared_keys(client))

    def queue_state(self) -> list[str]:
        """Return the whole queue as stored in Redis, for the report of a failure."""
        found = []
        readers = {"hash": "hgetall", "set": "smembers", "string": "get"}
        with redis.Redis.from_url(self.redis.url, decode_responses=True) as client:
            found.append(f"now {client.time()}")
            for name in sorted(client.scan_iter(count=1000)):
                kind = client.type(name)
                short = name.removeprefix("csifleet:").partition(":")[0]
                if kind in readers and not short.startswith(("catalog", "capacity", "event")):
                    value = getattr(client, readers[kind])(name)
                elif kind == "zset":
                    value = client.zrange(name, 0, 9, withscores=True)
                elif kind == "list":
                    value = (client.llen(name), client.lrange(name, -40, -1))
                else:
                    continue
                found.append(f"{name}: {str(value)[:3000]}")
        return found

    def show_threads(self) -> None:
        """Let every worker write the stacks of its threads to its log and exit."""
        for name in self.workers_():
            process = self.parts[name].process
            self.parts[name].wanted = False
            if process is not None:
                process.signal(signal.SIGABRT)

    def queue_left(self) -> list[str]:
        """Return every entry of the queue's structures and of Celery's lists."""
        with redis.Redis.from_url(self.redis.url) as client:
            self.undeclared |= set(undeclared_keys(client))
            left = []
            for raw in client.scan_iter(count=1000):
                name = raw.decode()
                # Marks are removed with their objects, and some objects remain.
                is_mark = name.startswith(NAMES["marks"].full)
                if name.startswith(PREFIX) and not is_mark and is_left(name):
                    left.append(name)
                elif name.startswith("drv."):
                    left.append(f"{name} ({client.llen(name)})")
            return left

    def assert_at_rest(self, seconds: float) -> None:
        """Assert I-6: nothing waits, no record is left, and the volumes equal the PVs."""

        def is_at_rest() -> bool:
            # All conditions are checked together: a copy that is left causes work, which changes
            # the volumes.
            assert empty(self.copies())
            assert empty(self.queue_left())
            return equal(set(self.driver.volumes()), self.handles())

        wait_until(is_at_rest, seconds, "no ConfigMap, empty queues, I-6", interval_seconds=0.2)
        assert sorted(self.undeclared) == []

    def log_lines(self, *patterns: str) -> list[str]:
        return [
            f"{path.stem}: {line}"
            for path in sorted(self.directory.glob("*.log"))
            for line in path.read_text(errors="replace").splitlines()
            if any(pattern in line for pattern in patterns)
        ]

    def stop(self) -> None:
        """End every process that was started here, whatever happened before."""
        self._ended.set()
        if self._tender is not None:
            self._tender.join(15)
        actions: list[Callable[[], object]] = [part.kill for part in self.parts.values()]
        ways = (*self.lists.values(), *self.api_ways.values(), *self.redis_ways.values())
        actions += [way.stop for way in ways]
        for action in (*actions, self.driver.close, self.redis.kill, self.api.close):
            with suppress(Exception):
                action()

    def _tend(self) -> None:
        while not self._ended.wait(0.1):
            now = time.monotonic()
            for part in self.parts.values():
                part.tend(now)


def empty(left: list[str]) -> bool:
    """Return True, or raise an error that shows what is left."""
    assert not left, f"left: {left[:8]}"
    return True


def equal(stored: set[str], saved: set[str]) -> bool:
    """Return True, or raise an error that names leaked and missing volumes."""
    assert stored == saved, f"no PV: {sorted(stored - saved)}, no volume: {sorted(saved - stored)}"
    return True
