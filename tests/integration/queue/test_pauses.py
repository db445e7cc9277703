"""A pause of an operator outlives Redis (COR-14): restored before anything is admitted again."""

from __future__ import annotations

import copy

import pytest

from workers.engine.pausecopies import CLASS, DRIVER, Copy, PauseCopies, PauseRestorer
from workers.errors import ApiError
from workers.kube.errors import ForbiddenError, NotFoundError, Unreachable
from workers.queue.keys import claim_key
from workers.queue.names import NAMES
from workers.queue.pauses import Pauses, Said
from workers.queue.workqueue import WorkQueue

pytestmark = pytest.mark.integration


class ConfigMaps:
    """The API server's part."""

    def __init__(self):
        self.stored = None
        self.error = None
        self.reads = 0

    def get(self, resource, name, *, namespace):
        self.reads += 1
        if self.error is not None:
            raise self.error
        if self.stored is None:
            raise NotFoundError(404, "NotFound", name)
        return copy.deepcopy(self.stored)

    def apply_config_map(self, body):
        if self.error is not None:
            raise self.error
        if self.stored is None:
            self.stored = {**body, "data": {}}
        merged = {**self.stored["data"], **body["data"]}
        self.stored["data"] = {key: value for key, value in merged.items() if value is not None}


class World:
    """A worker with one driver, a tool beside it, an API server."""

    def __init__(self, client):
        self.client = client
        self.maps = ConfigMaps()
        self.copies = PauseCopies(self.maps, "csi-fleet")
        self.clock = 0.0
        self.pauses = Pauses(client, clock=lambda: self.clock)
        self.restorer = PauseRestorer(self.copies, self.pauses, clock=lambda: self.clock)
        self.sent = []
        self.queue = WorkQueue(
            client, publish=self.sent.extend, before_limits=self.restorer.restore
        )
        self.pauses.attach(self.queue)
        self.queue.register_process()
        self.queue.set_limits("claims|d", 10)
        self.tool = Pauses(client, WorkQueue(client, publish=self.sent.extend))

    def pause(self, name="d", **options):
        self.copies.keep(Copy(DRIVER, name, self.tool.pause_driver(name, "firmware", **options)))

    def lose_everything(self):
        """As FLUSHALL does, or a Redis on an emptyDir; what the worker does then."""
        self.client.flushall()
        self.clock += 10
        self.queue.heartbeat()
        self.client.delete(NAMES["quiet"].full)  # the silence of the new life is over

    def admitted(self):
        """What the worker is sent for a new claim."""
        self.sent.clear()
        self.queue.add([claim_key("d", "ns", "one", "u1")])
        self.queue.declared.declare()
        self.queue.pump(period_seconds=0)
        return len(self.sent)


@pytest.fixture
def world(redis_client):
    return World(redis_client)


def test_nothing_of_a_paused_driver_is_admitted_after_a_wipe(world):
    """OPS-1: a pause for maintenance of the array, and Redis' node is drained meanwhile."""
    world.pause()
    world.lose_everything()
    assert world.admitted() == 0
    assert world.queue.stats()["claims|d"].paused == {"operator": "firmware"}


def test_without_a_pause_work_goes_on_after_a_wipe(world):
    world.lose_everything()
    assert world.admitted() == 1


def test_a_resume_removes_the_copy(world):
    world.pause()
    world.tool.resume_driver("d")
    world.copies.drop(DRIVER, "d")
    assert world.copies.all() == []
    world.lose_everything()
    assert world.admitted() == 1


def test_a_resume_in_redis_wins_over_an_older_copy(world):
    """The API server was away at the resume, or a worker read the copy a moment before."""
    world.pause()
    world.tool.resume_driver("d")
    world.clock += 10
    world.restorer.restore("claims|d")
    assert world.admitted() == 1


def test_a_newer_copy_wins_over_redis(world):
    """A replica was promoted that had not heard of the second word."""
    said = world.tool.pause_driver("d", "old words")
    newer = Said("new words", 0, said.said_ms + 1)
    world.copies.keep(Copy(DRIVER, "d", newer))
    world.clock += 10
    world.restorer.restore("claims|d")
    assert world.queue.stats()["claims|d"].paused == {"operator": "new words"}


def test_nothing_is_admitted_until_the_copies_could_be_read(world):
    world.pause()
    world.maps.error = Unreachable("no route")
    world.lose_everything()
    assert world.admitted() == 0
    assert world.queue.stats()["claims|d"].limits is None
    world.maps.error = None
    world.clock += 10
    assert world.admitted() == 0
    assert world.queue.stats()["claims|d"].paused == {"operator": "firmware"}


def test_roles_of_before_stop_no_work(world):
    """An upgrade of the image alone: no right to read the copies."""
    world.maps.error = ForbiddenError(403, "Forbidden", "configmaps is forbidden")
    world.lose_everything()
    assert world.admitted() == 1


def test_a_driver_on_a_new_node_is_paused_too(world):
    world.pause()
    world.clock += 10
    world.queue.set_limits("claims|d@node-2", 10)
    assert world.queue.stats()["claims|d@node-2"].paused == {"operator": "firmware"}


def test_a_pause_that_ended_is_not_restored(world):
    world.pause(seconds=-1)
    world.lose_everything()
    assert world.admitted() == 1


def test_classes_come_back_with_the_first_lane(world):
    said = world.tool.pause_class("gold", "audit")
    world.copies.keep(Copy(CLASS, "gold", said))
    world.lose_everything()
    world.queue.declared.declare()
    found = world.pauses.of_class("gold")
    assert found is not None
    assert found.reason == "audit"


def test_an_older_copy_does_not_pause_a_class_that_was_resumed(world):
    """OPS-1: also where the pause itself was lost in between; what was said last counts."""
    said = world.tool.pause_class("gold", "audit")
    world.lose_everything()
    world.tool.resume_class("gold")
    assert not world.tool.restore_class("gold", said)
    assert world.pauses.of_class("gold") is None


def test_names_with_signs_and_unreadable_entries(world):
    world.copies.keep(Copy(DRIVER, "d@node/1", Said("x", 0, 1)))
    world.maps.stored["data"]["driver.broken"] = "{"
    assert [one.name for one in world.copies.all()] == ["d@node/1"]
    (field, _) = world.maps.stored["data"]
    assert field == "driver.d_40node_2f1"
    world.copies.drop(DRIVER, "d@node/1")
    assert world.copies.all() == []


def test_one_reading_serves_all_lanes(world):
    world.maps.reads = 0
    world.clock += 10
    for kind in ("claims", "volumes", "capacity"):
        world.queue.set_limits(f"{kind}|d", 10)
    assert world.maps.reads == 1


def test_an_api_server_without_answer_is_no_error_of_the_lanes(world):
    """The worker starts; `declare` tries again."""
    world.maps.error = Unreachable("no route")
    world.clock += 10
    world.queue.set_limits("volumes|d", 10)
    assert isinstance(world.maps.error, ApiError)
    assert world.queue.stats().get("volumes|d") is None
