"""Count the leftovers of snapshots whose objects are deleted while the driver works.

    python -m tests.bench.snapshot_leaks [--peer FOLDER] [--only forced] [--count 10]

Each story runs with a complete csi-fleet and, with `--peer`, with the csi-snapshotter and the
snapshot-controller of that folder, which are restarted a second after they die. The output is the
table of docs/guarantees.md: snapshots in the storage without an object, and objects that are never
deleted. The run starts its own control plane.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc

from csi_client._generated import csi_pb2_grpc
from tests.bench.leaks import FLAGS, Peer, options, print_table
from tests.bench.resizing import Claims, at_once
from tests.bench.snapshotting import ROOT, Snapshots
from tests.support.chaos import System
from tests.support.controlplane import ControlPlane
from tests.support.csi_driver import DirectoryDriver, create_request
from tests.support.kube_api import KubeApi, KubeApiError
from tests.support.redis_server import find_redis_server
from tests.support.waiting import wait_until

GOES_SECONDS = 45.0
QUIET_SECONDS = 10.0
CONTENTS = f"{ROOT}/volumesnapshotcontents"
SLOW = {"method": "CreateSnapshot", "delay_seconds": 3}
LOST = {"method": "CreateSnapshot", "code": "DEADLINE_EXCEEDED", "after_work": True}


@dataclass
class Pair(Peer):
    """csi-snapshotter and snapshot-controller."""

    def commands(self) -> list[list[str]]:
        groups = "--feature-gates=CSIVolumeGroupSnapshot=false"
        return [
            [f"{self.program}/csi-snapshotter", f"--csi-address={self.driver.address}", *FLAGS],
            [f"{self.program}/snapshot-controller", groups, FLAGS[-1]],
        ]


class Volumes(Claims):
    """Claims whose volumes exist in the driver."""

    def __init__(self, api: KubeApi, driver: DirectoryDriver, count: int) -> None:
        super().__init__(api, driver.name, count)
        self._channel = grpc.insecure_channel(f"unix:{driver.address}")

    def __exit__(self, *_: object) -> None:
        super().__exit__(*_)
        self._channel.close()

    def handle(self, name: str) -> str:
        made = csi_pb2_grpc.ControllerStub(self._channel).CreateVolume(create_request(name))
        return str(made.volume.volume_id)


class Told(Snapshots):
    """The snapshots of one story, with the actions of its steps."""

    def __init__(self, system: System, claims: Claims) -> None:
        super().__init__(system.api, claims)
        self.system, self.driver = system, system.driver

    def __exit__(self, *_: object) -> None:
        self.driver.set_rules()
        self.force()
        super().__exit__(*_)

    def begin(self, rule: dict[str, Any]) -> None:
        """Make all snapshots, and return when the driver was asked for each."""
        self.driver.set_rules({**rule, "times": 2 * len(self.claims.names)})
        at_once(self.take, self.claims.names)
        wait_until(
            lambda: (
                len({call.request["name"] for call in self.driver.calls("CreateSnapshot")})
                >= len(self.claims.names)
            ),
            60,
            "the driver is asked for every snapshot",
        )

    def delete(self) -> None:
        """Delete all VolumeSnapshots, as users do."""
        at_once(lambda name: self.api.delete(f"{self.path}/{name}"), self.claims.names)

    def force(self) -> None:
        """Remove the finalizers and the objects, as users do if a deletion hangs."""
        for path in self.objects():
            for change in ({"metadata": {"finalizers": None}}, None):
                with suppress(KubeApiError):
                    self.api.patch(path, change) if change else self.api.delete(path)

    def objects(self) -> list[str]:
        """Return the paths of the remaining objects."""
        snapshots = [f"{self.path}/{one['metadata']['name']}" for one in self.api.items(self.path)]
        contents = [f"{CONTENTS}/{one['metadata']['name']}" for one in self.api.items(CONTENTS)]
        return [*snapshots, *contents]

    def kill(self, *, wanted: bool) -> None:
        """Kill all processes that call the driver; they restart when `wanted` is True."""
        for name in self.system.workers_():
            self.system.parts[name].wanted = wanted
            if not wanted:
                self.system.kill(name)

    def stored(self) -> int:
        """Return the number of snapshots in the storage."""
        return len(list((self.driver.root / "snapshots").glob("[!.]*/metadata.json")))

    def outcome(self) -> str:
        """Return what is left when nothing changes any longer."""
        end = time.monotonic() + GOES_SECONDS
        while self.objects() and time.monotonic() < end:
            time.sleep(0.5)
        stuck = len({path for path in self.objects() if path.startswith(CONTENTS)})
        while not self._is_quiet() and time.monotonic() < end:
            time.sleep(0.5)
        return f"{self.stored()} left, {stuck} stuck"

    def _is_quiet(self) -> bool:
        calls = [one for one in self.driver.calls() if one.method.endswith("Snapshot")]
        return time.time() - max(one.started_at for one in calls) > QUIET_SECONDS


def deleted(told: Told) -> None:
    told.begin(SLOW)
    told.delete()


def deleted_after_a_lost_answer(told: Told) -> None:
    told.begin(LOST)
    told.delete()


def killed(told: Told) -> None:
    told.begin(SLOW)
    told.kill(wanted=False)
    told.delete()
    told.kill(wanted=True)


def contents_deleted(told: Told) -> None:
    told.begin(SLOW)
    for path in told.objects():
        if path.startswith(CONTENTS):
            told.api.delete(path)
    told.delete()


def forced(told: Told) -> None:
    told.begin(SLOW)
    told.delete()
    told.force()


def killed_and_forced(told: Told) -> None:
    told.begin(SLOW)
    told.kill(wanted=False)
    told.delete()
    told.force()
    told.kill(wanted=True)


STORIES: dict[str, Callable[[Told], None]] = {
    "the processes are killed, the VolumeSnapshot is deleted": killed,
    "it and its content are removed by force": forced,
    "the VolumeSnapshot is deleted": deleted,
    "its content is deleted, then it": contents_deleted,
    "the answer is lost, it is deleted": deleted_after_a_lost_answer,
    "the processes are killed, both removed by force": killed_and_forced,
}


@dataclass
class Fleet(System):
    """csi-fleet with both controllers."""

    def start(self) -> Self:
        self.workers, self.watchers = 2, 1
        self.controllers = "snapshotter,snapshot-controller"
        self.flags = ("--resync-period=10s",)
        self.worker_flags = FLAGS
        return super().start()


def main() -> None:
    parser = options("Count what snapshots leave behind.", "folder of the two Go programs")
    parser.add_argument("--count", type=int, default=10)
    arguments = parser.parse_args()
    redis = str(find_redis_server())

    def play(title: str, name: str, plane: ControlPlane, folder: Path) -> str:
        peer = Pair(folder, plane, redis, program=arguments.peer)
        with (
            Fleet(folder, plane, redis) if name == "csi-fleet" else peer as system,
            Volumes(system.api, system.driver, arguments.count) as claims,
            Told(system, claims) as told,
        ):
            STORIES[title](told)
            return told.outcome()

    names = ["csi-fleet", *(["the Go pair"] if arguments.peer else [])]
    titles = [one for one in STORIES if arguments.only in one]
    print_table("While the driver works", titles, names, play)


if __name__ == "__main__":
    main()
