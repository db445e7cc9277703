"""Installs Debian packages that a test needs, if this process is root and apt is available."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class AptError(RuntimeError):
    """The packages could not be installed; the text contains the reason."""


def install(*packages: str) -> None:
    """Install packages without their recommended packages; start no service.

    Raises:
        AptError: not root, no apt, or apt failed.
    """
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise AptError(f"only root with apt-get can install {', '.join(packages)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    patient = ["-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300"]
    with one_at_a_time():
        for command in (
            ["apt-get", "update", "-qq", *patient],
            ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *patient, *packages],
        ):
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                raise AptError(f"{' '.join(command)}: {done.stderr[-500:]}")


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Serialise installations, because apt refuses a second one that runs at the same time."""
    with Path(tempfile.gettempdir(), "csi-fleet-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
