"""Debian packages that a test needs, brought in on a machine where we may: root and apt."""

from __future__ import annotations

import os
import shutil
import subprocess


class AptError(RuntimeError):
    """They could not be installed; the text says why."""


def install(*packages: str) -> None:
    """Install them without what they only recommend; starts no service.

    Raises:
        AptError: not root, no apt, or apt failed.
    """
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise AptError(f"only root with apt-get can install {', '.join(packages)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *packages],
    ):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AptError(f"{' '.join(command)}: {done.stderr[-500:]}")
