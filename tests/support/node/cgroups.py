"""Creates a cgroup for the node in every hierarchy, and removes it with all its descendants."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.support.waiting import wait_until

TOP = Path("/sys/fs/cgroup")
CPUSET = ("cpuset.cpus", "cpuset.mems")


def make(name: str) -> None:
    """Create the cgroup; a new cpuset of version 1 has no CPU until it is given some."""
    for hierarchy in _hierarchies():
        folder = hierarchy / name
        folder.mkdir(exist_ok=True)
        for file in CPUSET:
            if (folder / file).exists() and (hierarchy / "cpuset.cpus").exists():
                with suppress(OSError):
                    (folder / "cgroup.clone_children").write_text("1")
                (folder / file).write_text((hierarchy / file).read_text())


def remove(name: str) -> None:
    """Remove the cgroup as soon as its last process has ended."""
    wait_until(lambda: not _remaining(name), 30, f"cgroup {name} is gone", interval_seconds=0.2)


def _remaining(name: str) -> list[Path]:
    for folder in _folders(name):
        with suppress(OSError):
            folder.rmdir()
    return list(_folders(name))


def _folders(name: str) -> Iterator[Path]:
    """Yield the cgroup and its descendants, the deepest first."""
    for hierarchy in _hierarchies():
        for path, _, _ in os.walk(hierarchy / name, topdown=False):
            yield Path(path)


def _hierarchies() -> list[Path]:
    if (TOP / "cgroup.controllers").exists():
        return [TOP]
    return [one for one in TOP.iterdir() if one.is_dir() and not one.is_symlink()]
