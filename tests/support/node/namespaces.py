"""Creates the network, mount and process namespaces of one node, and connects them to this
machine."""

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
    """The namespaces cannot be created on this machine; the text contains the reason."""


class Namespaces:
    """Namespaces that `start` creates and `stop` removes, with all their processes and mounts.

    `address` is the node's address on a link with two ends, so only this machine can reach the
    node.
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
        """Create the namespaces.

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
        """Return a command prefix for the node's network, with `fully` also for its mounts and
        processes."""
        more = ["--mount", "--pid"] if fully else []
        return ["nsenter", "--target", str(self.pid), "--net", *more]

    def run(self, *command: str) -> str:
        """Run one command in all of the node's namespaces; return its output."""
        return _run(*self.entered(fully=True), *command)

    def stop(self) -> None:
        """Kill every process inside; the kernel then removes the mounts and the link."""
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
    """Return the ids of a process's children."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Inside:
    """A long-lived program in all of the node's namespaces; the program is a child of `nsenter`."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def is_running(self) -> bool:
        """Return True if the program is alive."""
        return self.process.is_running()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop the program and wait; the processes that it started keep running."""
        with suppress(OSError):
            for pid in children(self.process.pid):
                os.kill(pid, number)
        wait_until(lambda: not self.process.is_running(), 30, f"{self.process.name} ends")


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NamespacesError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
