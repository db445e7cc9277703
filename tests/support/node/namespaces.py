"""Network, mount and process namespaces of one node, and the wire between them and this machine."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.support.processes import Process, start_process
from tests.support.waiting import wait_until

KUBELET = Path("/var/lib/kubelet")


class NamespacesError(RuntimeError):
    """This machine cannot make them; the text says why."""


class Namespaces:
    """Made by `start`, gone with all their processes and mounts after `stop`.

    `address` is the node's on a wire of two, so that this machine reaches it and nobody else does.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        number = random.randrange(2**14)
        subnet = f"100.{64 + number // 4096}.{number // 16 % 256}"
        self._outside = f"{subnet}.{number % 16 * 16 + 1}"
        self.address = f"{subnet}.{number % 16 * 16 + 2}"
        self._wire = f"csifleet{number}"
        self._made_kubelet = False
        self._holder: Process | None = None
        self.pid = 0

    def start(self) -> None:
        """Make them.

        Raises:
            NamespacesError: with what the kernel or a program said.
        """
        (self.directory / "kubelet").mkdir(parents=True)
        if not KUBELET.exists():
            KUBELET.mkdir()
            self._made_kubelet = True
        init = Path(__file__).with_name("init.py")
        self._holder = start_process(
            "unshare",
            [
                *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *(sys.executable, init, self.directory),
            ],
            log=self.directory / "namespaces.log",
        )
        wait_until(self._is_up, 20, "the namespaces are made", fatal=NamespacesError)
        self.pid = children(self._holder.pid)[0]
        _run(
            "ip", "link", "add", self._wire, "type", "veth", "peer", "eth0", "netns", str(self.pid)
        )
        _run("ip", "address", "add", f"{self._outside}/28", "dev", self._wire)
        _run("ip", "link", "set", self._wire, "up")
        inside = self.entered()
        _run(*inside, "ip", "address", "add", f"{self.address}/28", "dev", "eth0")
        _run(*inside, "ip", "link", "set", "eth0", "up")
        _run(*inside, "ip", "route", "add", "default", "via", self._outside)

    def entered(self, *, fully: bool = False) -> list[str]:
        """Prefix of a command that shall see the network, with `fully` mounts and processes too."""
        more = ["--mount", "--pid"] if fully else []
        return ["nsenter", "--target", str(self.pid), "--net", *more]

    def run(self, *command: str) -> str:
        """One command fully inside; returns what it printed."""
        return _run(*self.entered(fully=True), *command)

    def stop(self) -> None:
        """End every process inside; the kernel takes mounts and wire with them."""
        if self._holder is not None:
            self._holder.kill()
            with suppress(NamespacesError):
                _run("ip", "link", "delete", self._wire)
        if self._made_kubelet:
            with suppress(OSError):
                KUBELET.rmdir()

    def _is_up(self) -> bool:
        assert self._holder is not None
        if not self._holder.is_running():
            raise NamespacesError(self._holder.log_tail())
        return (self.directory / "inside").exists()


def children(pid: int) -> list[int]:
    """Process ids of a process's children."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Inside:
    """One long-lived program fully inside: what runs is the child of `nsenter`."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def is_running(self) -> bool:
        """Whether it is alive."""
        return self.process.is_running()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it and wait; what it started stays."""
        with suppress(OSError):
            for pid in children(self.process.pid):
                os.kill(pid, number)
        wait_until(lambda: not self.process.is_running(), 30, f"{self.process.name} ends")


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NamespacesError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
