"""Runs the components as the manifests do: one process each, with its own Redis user.

```
with Components(directory, redis) as parts:
    parts.start("watcher", kubeconfig)
    parts.start("worker", kubeconfig, f"--csi-address={driver.address}")
```
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from tests.support.fleet import ROOT, START_SECONDS, environment, program
from tests.support.processes import Process, start_process
from tests.support.secure_redis import SecureRedis
from tests.support.waiting import wait_until

API_RATE = ("--kube-api-qps=1000", "--kube-api-burst=1000")
_WITH_CLUSTER = {"watcher", "worker"}


class Components:
    """Processes that use the shipped Redis; their logs and state folders are in `directory`."""

    def __init__(self, directory: Path, redis: SecureRedis) -> None:
        self.directory = directory
        self.processes: dict[str, Process] = {}
        self._redis = redis

    def start(
        self, command: str, kubeconfig: Path | None = None, *flags: str, name: str = "",
        wait: bool = True,
        **env: str,
    ) -> Process:  # fmt: skip
        """Start a component and, except for Flower, wait until it reports that it is ready."""
        name = name or command
        state = self.directory / f"state-{name}"
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        cluster = [f"--kubeconfig={kubeconfig}", *API_RATE] if command in _WITH_CLUSTER else []
        process = start_process(
            name,
            [
                *program(),
                *(command, *cluster, *self._redis.login(command), *flags),
                f"--state-dir={state}",
            ],
            log=self.directory / f"{name}.log",
            env=environment(**env),
            cwd=ROOT,
        )
        self.processes[name] = process
        if wait and command != "flower":
            wait_until(
                lambda: any(state.glob("*.ready")) or self._ended(process),
                START_SECONDS,
                f"{name} is ready",
                fatal=RuntimeError,
            )
        return process

    def stop(self, *names: str) -> None:
        """Stop the named components, or all of them."""
        for name in names or tuple(self.processes):
            self.processes.pop(name).stop(20)

    def log_text(self, name: str) -> str:
        """Return everything that a component printed."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _ended(self, process: Process) -> bool:
        if not process.is_running():
            raise RuntimeError(f"{process.name} ended:\n{process.log_tail(30)}")
        return False
