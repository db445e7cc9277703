"""The measured systems: csi-fleet in its modes, and one csi-provisioner per driver."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tests.bench.drivers import BenchDrivers
from tests.bench.usage import fleet_groups
from tests.support.fleet import API_RATE, ROOT, Fleet, environment, program
from tests.support.processes import Process, start_process
from tests.support.redis_server import RedisServer, find_redis_server
from tests.support.waiting import wait_until
from workers.queue.seal import new_key

CONTROLLERS = "provisioner,attacher,resizer,snapshotter,snapshot-controller"


class System(Protocol):
    """A running provisioner for all drivers of one host."""

    name: str

    def groups(self) -> Mapping[str, list[int]]:
        """Return the process ids by role."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def ours(make: Callable[[Path], System]) -> list[Callable[[], System]]:
    """Return makers of this checkout's system and of the other commit's, which BASE names."""
    return [partial(make, code) for code in codes()]


def codes() -> list[Path]:
    base = os.environ.get("BASE")
    return [ROOT, Path(base)] if base else [ROOT]


def name_of(code: Path) -> str:
    return "csi-fleet" if code == ROOT else "csi-fleet, base"


class Ours:
    """`csi-fleet run` with a drivers file, embedded Redis and the given number of workers."""

    def __init__(
        self,
        kubeconfig: Path,
        drivers: BenchDrivers,
        *flags: str,
        workers: int = 1,
        calls_at_once: int = 100,
        operations: Sequence[str] = ("create", "delete"),
        code: Path = ROOT,
    ) -> None:
        self.name = name_of(code)
        self._folder = tempfile.TemporaryDirectory(prefix="bf-")
        folder = Path(self._folder.name)
        self.drivers = drivers
        file = folder / "drivers.yaml"
        limit = f"{{concurrency: {calls_at_once}}}"
        limits = ", ".join(f"{operation}: {limit}" for operation in operations)
        lines = [
            f"- {{name: {name}, endpoint: {drivers.address(name)}, limits: {{{limits}}}}}\n"
            for name in drivers.names
        ]
        file.write_text("drivers:\n" + "".join(lines))
        self.fleet = Fleet(
            folder / "f",
            kubeconfig,
            [],
            f"--drivers-file={file}",
            f"--workers={workers}",
            "-v=1",
            *flags,
            code=code,
        )

    def groups(self) -> dict[str, list[int]]:
        assert self.fleet.process is not None
        return fleet_groups(self.fleet.process.pid)

    def __enter__(self) -> Self:
        self.fleet.__enter__()
        time.sleep(3)  # beat starts last; the system is idle from here on
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.fleet.__exit__(kind, error, trace)
        self._folder.cleanup()


class Apart:
    """csi-fleet as a cluster runs it: each part is a separate program, with one Redis."""

    mode = ""

    def __init__(self, kubeconfig: Path, drivers: BenchDrivers, code: Path) -> None:
        self.name = name_of(code)
        self._kubeconfig, self._drivers, self._code = kubeconfig, drivers, code
        self._stack = ExitStack()
        self._processes: dict[str, list[int]] = {}

    def workers(self, folder: Path) -> list[str]:
        """Return the flag of each worker process."""
        raise NotImplementedError

    def groups(self) -> dict[str, list[int]]:
        return self._processes

    def __enter__(self) -> Self:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ba-")))
        binary = find_redis_server()
        assert binary is not None
        redis = RedisServer(binary, folder).start()
        self._stack.callback(redis.kill)
        assert redis.process is not None
        self._processes["redis"] = [redis.process.pid]
        everything = [f"--kubeconfig={self._kubeconfig}", f"--controllers={CONTROLLERS}"]
        parts = [("watcher", everything), ("beat", list[str]())]
        parts += [("worker", [*everything, flag]) for flag in self.workers(folder)]
        env = environment(CSI_FLEET_RECORDS_KEY=new_key())
        for number, (part, flags) in enumerate(parts):
            state = folder / str(number)
            state.mkdir()
            process = start_process(
                part,
                [
                    *program(self._code),
                    part,
                    *flags,
                    f"--redis-url={redis.unix_url}",
                    f"--state-dir={state}",
                ],
                log=folder / f"{number}.log",
                env=env,
                cwd=self._code,
            )
            self._stack.callback(process.stop)
            self._processes.setdefault(part, []).append(process.pid)
        states = [folder / str(number) for number in range(len(parts))]
        wait_until(lambda: all(any(one.glob("*.ready")) for one in states), 120, "all are ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class Central(Apart):
    """Two workers for all drivers."""

    mode = "central"

    def workers(self, folder: Path) -> list[str]:
        file, drivers = folder / "drivers.yaml", self._drivers
        lines = [f"- {{name: {one}, endpoint: {drivers.address(one)}}}\n" for one in drivers.names]
        file.write_text("drivers:\n" + "".join(lines))
        return 2 * [f"--drivers-file={file}"]


class Sidecars(Apart):
    """A worker for each driver, with all controllers."""

    mode = "sidecar"

    def workers(self, folder: Path) -> list[str]:
        del folder
        return [f"--csi-address={self._drivers.address(one)}" for one in self._drivers.names]


class Peer:
    """A Go sidecar as its users run it: one process per driver.

    Args:
        binary: path of the program.
        kubeconfig: file for the same cluster.
        drivers: the same drivers.
        is_throttled: keep client-go's default of 5 requests a second.

    Attributes:
        program: name of the process.
        started: text in its log when it works.
        flags: further flags of the program.
        has_address: the program serves one driver; if False, there is a single process.
        prefix: command in front of the program.
    """

    program = "csi-provisioner"
    started = "Started provisioner controller"
    flags: tuple[str, ...] = ()
    has_address = True
    prefix: tuple[str, ...] = ()

    def __init__(
        self, binary: Path, kubeconfig: Path, drivers: BenchDrivers, *, is_throttled: bool = False
    ) -> None:
        self.name = "reference, default qps" if is_throttled else "reference"
        self._folder = tempfile.TemporaryDirectory(prefix="bp-")
        self._rate = () if is_throttled else API_RATE
        self._binary, self._kubeconfig, self._drivers = binary, kubeconfig, drivers
        self._processes: list[Process] = []

    def groups(self) -> dict[str, list[int]]:
        return {self.program: [one.pid for one in self._processes]}

    def __enter__(self) -> Self:
        folder = Path(self._folder.name)
        addresses = [f"--csi-address={self._drivers.address(one)}" for one in self._drivers.names]
        for number, address in enumerate(addresses if self.has_address else [""]):
            process = start_process(
                self.program,
                [
                    *self.prefix,
                    str(self._binary),
                    f"--kubeconfig={self._kubeconfig}",
                    *([address] if address else []),
                    *self._rate,
                    *self.flags,
                    "--v=1",
                ],
                log=folder / f"{number}.log",
                env=environment(NAMESPACE="default"),
                cwd=ROOT,
            )
            self._processes.append(process)
        logs = [folder / f"{number}.log" for number in range(len(self._processes))]
        wait_until(
            lambda: all(self.started in log.read_text() for log in logs),
            60,
            f"every {self.program} runs",
        )
        time.sleep(1)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.stop()
        self._folder.cleanup()


class Together:
    """Several programs as one system."""

    def __init__(self, name: str, parts: Sequence[System]) -> None:
        self.name = name
        self._parts = parts
        self._stack = ExitStack()

    def groups(self) -> dict[str, list[int]]:
        return {name: pids for part in self._parts for name, pids in part.groups().items()}

    def __enter__(self) -> Self:
        for part in self._parts:
            self._stack.enter_context(part)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
