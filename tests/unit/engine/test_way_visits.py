"""The way of a claim is short and straight: few files, and nothing on it is visited over and over.

One claim goes from its watch event to its saved PV and its finished key, through the real watcher
rules, outbox, queue, frame and pass; API server, driver and Celery's broker are fakes. Each call of
a function of ours is noted.

What counts as a visit on the way: a call of a function that passes the claim on, which is one that
calls another function of ours. Not counted are

- leaves (getters, encoders): who looks up a word has not gone anywhere;
- pure rules (`workers/translate`, `workers/topology`, the text of keys): values in, values out, on
  any claim's way and in any order, such as "the class that it names", which five places ask for;
- `workers/observability`, which only looks on;
- what lies behind a door. The doors are the three places through which all effects go, one function
  each by intention: a script on Redis, the step before an effect, the tickets of what a script
  admitted. They are visited once per effect, and the effects of the way are listed below, in order.

The claim is that of the page: bound at once, by a worker that has not seen its class yet. One that
waits for its first consumer looks into the catalog for nodes and CSINodes too, each a visit more.
The far sides of the API client, the driver's client and Celery are no part of the way.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Self

import msgspec
import pytest

from tests.support.crash_world import CLAIM, CONTROLLERS, DRIVER, VOLUME, CrashWorld
from watcher.machine import Machine
from watcher.outbox import Outbox
from workers.app import make_app, publisher
from workers.controllers.catalogue import SPECS
from workers.kube.watch import Reflector, _Position
from workers.queue.keys import Key
from workers.queue.workqueue import WorkQueue
from workers.tasks.registry import register

ROOT = Path(__file__).parents[3]
PACKAGES = tuple(f"{ROOT / package}/" for package in ("workers", "watcher", "csi_client"))
NO_STATIONS = (
    "workers/translate/",
    "workers/topology/",
    "workers/observability/",
    "workers/queue/keys.py",
)
MOST_VISITS = 2
MOST_FILES = 35
# Each door with the argument that says what goes through it.
DOORS = {"Scripts.run": "name", "Effects.reach": "step", "Tickets.publish": ""}
EFFECTS = [
    ("Scripts.run", "add_events"),
    ("Tickets.publish", ""),
    ("Scripts.run", "take"),
    ("Tickets.publish", ""),
    ("Scripts.run", "catalog_read"),
    ("Effects.reach", "record-intent"),
    ("Scripts.run", "begin"),
    ("Effects.reach", "create-volume"),
    ("Effects.reach", "record-volume"),
    ("Scripts.run", "created"),
    ("Effects.reach", "save-volume"),
    ("Effects.reach", "forget-intent"),
    ("Effects.reach", "finish-key"),
    ("Scripts.run", "done"),
    ("Tickets.publish", ""),
]


def place(code: CodeType) -> tuple[str, str]:
    """File and function."""
    return str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname


class Walk:
    """Notes which functions of these files are called in this thread."""

    def __init__(self, files: tuple[str, ...] = PACKAGES) -> None:
        self.ours = files
        # Kept, so that a frame is counted once: a generator's is entered again and again.
        self.frames: set[FrameType] = set()
        self.callers: set[tuple[str, str]] = set()
        self.effects: list[tuple[str, str]] = []
        self.door_files: set[str] = set()

    def __enter__(self) -> Self:
        sys.setprofile(self.note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame in self.frames or not self.is_ours(frame):
            return
        above = []
        caller = frame.f_back
        while caller is not None:
            above += [caller.f_code] if self.is_ours(caller) else []
            caller = caller.f_back
        if any(code.co_qualname in DOORS for code in above):
            return
        self.callers.update(place(code) for code in above[:1])
        name = frame.f_code.co_qualname
        if name in DOORS:
            self.effects.append((name, str(frame.f_locals.get(DOORS[name], ""))))
            self.door_files.add(place(frame.f_code)[0])
        else:
            self.frames.add(frame)

    def is_ours(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self.ours)

    def visits(self) -> Counter[tuple[str, str]]:
        """Per function on the way."""
        found = Counter(place(frame.f_code) for frame in self.frames)
        return Counter(
            {
                (file, name): count
                for (file, name), count in found.items()
                if (file, name) in self.callers
                and not file.startswith(NO_STATIONS)
                and not name.endswith(">")  # a comprehension or lambda is a part of its function
            }
        )


class Scene:
    """A watcher and a worker around one claim of `CrashWorld`, all of it in this thread."""

    def __init__(self, client) -> None:
        self.world = CrashWorld(client)
        self.world.add_claim()
        owner = self.world.owner()
        self.app = make_app(self.world.settings)
        self.app.conf.update(broker_url="memory://")
        register(self.app, owner.runtime, CONTROLLERS, None)
        # Made once for each driver, whatever claims come.
        driver = owner.runtime.driver_of(DRIVER)
        owner.runtime.lock_rules.beside(Key("claims", DRIVER, ""), driver, CONTROLLERS, None)
        self.tickets = []
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

    def publish(self, keys) -> None:
        self.tickets += keys
        self.send(keys)

    def follow(self, stream, sink):
        path = stream.resource.path(namespace=stream.scope.namespace)
        self.reflectors[stream.resource.plural] = (
            sink,
            Reflector(None, path, stream.item_type, sink, metadata_only=stream.metadata_only),
        )
        return self.reflectors[stream.resource.plural][1]

    def listen(self, plural, *items) -> None:
        """A list; what comes after it are events."""
        sink, reflector = self.reflectors[plural]
        sink.begin_list()
        for item in items:
            sink.listed(reflector._decoded(msgspec.Raw(msgspec.json.encode(item))))
        sink.end_list("1")
        self.outbox.step()

    def watch(self, claim) -> None:
        """One event, as a line of the stream."""
        _, reflector = self.reflectors["persistentvolumeclaims"]
        event = {"type": "ADDED", "object": claim}
        reflector._follow(iter([msgspec.json.encode(event)]), _Position("1"))


@pytest.fixture
def walk(redis_client, monkeypatch):
    """The way of one claim, walked."""
    monkeypatch.setattr("workers.app._push", lambda *_: None)  # the broker is no part of it
    scene = Scene(redis_client)
    claim = scene.world.kube.objects[CLAIM]
    claim["metadata"] |= {"resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    with Walk() as walk:
        scene.watch(claim)
        scene.outbox.step()
        scene.app.tasks["claims.sync"](scene.tickets[0].text)
    assert ("persistentvolumes", "", VOLUME) in scene.world.kube.objects
    assert scene.world.waiting() == []
    return walk


def test_no_function_is_visited_more_than_twice(walk):
    """Twice: for what is done before and after the driver's call, such as an event or a record."""
    visits = walk.visits()
    assert len(visits) > 50, "the walk is seen"
    assert {name: count for name, count in visits.items() if count > MOST_VISITS} == {}


def test_the_way_goes_through_few_files(walk):
    files = {file for file, _ in walk.visits()} | walk.door_files
    assert len(files) <= MOST_FILES, sorted(files)


def test_every_effect_goes_through_its_door_once(walk):
    """Six scripts, one of them for the class, and each other effect announced."""
    assert walk.effects == EFFECTS


def test_a_function_that_is_visited_again_is_seen():
    """The count above can fail, and a generator is one visit however often it is entered."""

    def answer():
        yield from (leaf(), leaf())

    def leaf():
        return 1

    def station():
        return list(answer())

    with Walk((__file__,)) as walk:
        for _ in range(3):
            station()
    names = {name.rpartition(".")[2]: count for (_, name), count in walk.visits().items()}
    assert (names["station"], names["answer"]) == (3, 3)
    assert "leaf" not in names
