"""Child processes for tests and the demo, each with its own session and log file; stopped by
pid, never by name.

Each process dies with the thread that started it (Linux' parent death signal), so a killed test run
leaves nothing behind; start long-lived processes from the main thread. `detached=True` switches
this off.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Below the range of outgoing connections' ports (32768 and up), so that a free port stays free
# until its server binds it.
PORT_RANGE = range(20000, 32000)


# Ports that were given out, by all test runs of this user: lines of port and time.
GIVEN_OUT = Path(tempfile.gettempdir()) / f"csi-fleet-test-ports-{os.getuid()}"
GIVEN_SECONDS = 900


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free and was not given to another caller recently.

    Suites run at the same time, and a caller may take a minute until it listens on the port.
    """
    now = time.time()
    with GIVEN_OUT.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        # One line may be incomplete, if a run was killed while it wrote the line.
        known = (line.split() for line in file if line.endswith("\n"))
        given = {int(port): float(at) for port, at in known if now - float(at) < GIVEN_SECONDS}
        ports = (port for port in random.sample(PORT_RANGE, 1000) if port not in given)
        port = next(filter(_is_free, ports), None)
        if port is None:
            raise OSError(f"no free port in {PORT_RANGE}")
        given[port] = now
        file.truncate(0)
        file.writelines(f"{one} {at}\n" for one, at in given.items())
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@dataclass(slots=True)
class Process:
    """A child process that runs or has ended; its pid is also its session and process group."""

    name: str
    pid: int
    log: Path
    popen: subprocess.Popen[bytes] | None = None

    def is_running(self) -> bool:
        """Return True if the process exists and is not a zombie."""
        if self.popen is not None:
            return self.popen.poll() is None
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] != "Z"

    def was_killed(self) -> bool:
        """Return True if SIGKILL has ended the process, which this process started."""
        return self.popen is not None and self.popen.poll() == -signal.SIGKILL

    def signal(self, number: int) -> None:
        """Send one signal to the process only; a process that has ended is ignored."""
        if self.is_running():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the whole process group at once (SIGKILL) and reap it."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._wait(5)

    def stop(self, grace_seconds: float = 10) -> int | None:
        """Send SIGTERM to the process, and SIGKILL to its group after `grace_seconds`."""
        self.signal(signal.SIGTERM)
        if not self._wait(grace_seconds):
            self.kill()
        return self.popen.returncode if self.popen else None

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of the log, for an error message."""
        with suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def _wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.is_running():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def start_process(
    name: str,
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    detached: bool = False,
) -> Process:
    """Start `command` in its own session; its output is appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        popen = subprocess.Popen(
            [*([] if detached else _dying_with_parent()), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    return Process(name, popen.pid, log, popen)


def _dying_with_parent() -> list[str]:
    """Return the prefix of a command that must end with the thread that starts it.

    A call between fork and exec (`preexec_fn`) would do the same. But in a process that has used
    gRPC, fork runs gRPC's handlers, which can wait for ever; without such a call, Python uses
    vfork.
    """
    setpriv = shutil.which("setpriv")  # part of util-linux, so on Linux only
    # Not SIGTERM: without its etcd, a kube-apiserver takes minutes for a clean end.
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
