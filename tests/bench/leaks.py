"""Count the volumes that each known way to leak them leaves, for csi-fleet and csi-provisioner.

    python -m tests.bench.leaks [--peer /path/to/csi-provisioner] [--only 486] [--workers 2]

The stories of `tests/support/leaks.py` run with a complete csi-fleet and, with `--peer`, with that
program as one process, which is restarted a second after it dies. The output is the table of
docs/guarantees.md: leaked volumes of claims. The run starts its own control plane.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.chaos import Part, System
from tests.support.controlplane import ControlPlane
from tests.support.fleet import API_RATE, environment
from tests.support.leaks import STORIES, tell
from tests.support.redis_server import find_redis_server
from tests.support.waiting import wait_until

FLAGS = ("--timeout=5s", "--retry-interval-max=4s")


@dataclass
class Peer(System):
    """Go programs instead of csi-fleet's processes; Redis is not started."""

    program: str = ""

    def commands(self) -> list[list[str]]:
        """Return one command per program, each with its own flags."""
        return [[self.program, f"--csi-address={self.driver.address}", *FLAGS]]

    def start(self) -> Self:
        self.driver.start()
        for number, own in enumerate(self.commands()):
            name = f"worker-{number}"
            command = [*own, f"--kubeconfig={self.plane.kubeconfig}", *API_RATE]
            log = self.directory / f"peer-{number}.log"
            self.parts[name] = Part(name, command, log, environment())
            self.parts[name].start()
        wait_until(lambda: self.driver.calls("GetPluginInfo"), 60, "it asks the driver")
        self._tender = threading.Thread(target=self._tend, daemon=True)
        self._tender.start()
        return self


@contextmanager
def running(name: str, program: str, plane: ControlPlane, folder: Path) -> Iterator[System]:
    """Run a complete system for one story."""
    redis = str(find_redis_server())
    if name == "csi-provisioner":
        system: System = Peer(folder, plane, redis, program=program)
    else:
        system = System(
            folder,
            plane,
            redis,
            workers=2,
            watchers=1,
            flags=("--resync-period=10s",),
            worker_flags=FLAGS,
        )
    with system:
        yield system


def options(description: str, peer: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peer", default="", help=peer)
    parser.add_argument("--only", default="", help="stories whose title contains this")
    return parser


def print_table(
    heading: str, titles: Iterable[str], names: list[str], play: Callable[..., str]
) -> None:
    """Print one row per story.

    `play(title, name, plane, folder)` returns what the named system left behind.
    """
    print(f"| {heading} |", " | ".join(names), "|")
    print("|---|" + "---|" * len(names))
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leaks-")))
        plane = stack.enter_context(ControlPlane(scratch / "plane"))
        for number, title in enumerate(titles):
            folders = [scratch / f"{number}-{name.replace(' ', '-')}" for name in names]
            pairs = zip(names, folders, strict=True)
            cells = [play(title, name, plane, folder) for name, folder in pairs]
            print(f"| {title} |", " | ".join(cells), "|", flush=True)


def main() -> None:
    arguments = options("Count leaked volumes.", "a csi-provisioner binary").parse_args()

    def play(title: str, name: str, plane: ControlPlane, folder: Path) -> str:
        with running(name, arguments.peer, plane, folder) as system:
            leaked, count = tell(system, title)
        return f"{leaked} of {count}"

    names = ["csi-fleet", *(["csi-provisioner"] if arguments.peer else [])]
    print_table("Issue", [one for one in STORIES if arguments.only in one], names, play)


if __name__ == "__main__":
    main()
