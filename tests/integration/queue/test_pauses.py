"""Redis mirrors an operator's pause before any key is taken."""

from __future__ import annotations

import pytest

from workers.engine.pausing import mirror_first
from workers.errors import ApiError
from workers.kube.errors import ForbiddenError, Unreachable
from workers.kube.pauserecord import Recorded
from workers.queue.keys import claim_key
from workers.queue.names import NAMES
from workers.queue.pauses import Pauses
from workers.queue.workqueue import WorkQueue

pytestmark = pytest.mark.integration

FIRMWARE = {"driver d": "0 firmware"}


class ApiServer:
    """Holds the ConfigMap, as `PauseRecord` reads it."""

    def __init__(self):
        self.version, self.pauses = 0, {}
        self.error = None
        self.reads = 0

    def say(self, pauses):
        self.version, self.pauses = self.version + 10, pauses
        return self.state()

    def state(self):
        return Recorded(str(self.version), dict(self.pauses))

    def get(self):
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.state()


class World:
    """A worker with one driver, a command line tool, a watcher and an API server."""

    def __init__(self, client):
        self.client = client
        self.api = ApiServer()
        self.pauses = Pauses(client)
        self.sent = []
        self.queue = WorkQueue(
            client,
            publish=self.sent.extend,
            before_limits=lambda _lane: mirror_first(self.pauses, self.api),
        )
        self.pauses.attach(self.queue)
        self.queue.register_process()
        self.queue.set_limits("claims|d", 10)
        self.tool = Pauses(client, WorkQueue(client, publish=self.sent.extend))

    def say(self, pauses):
        """Do what `csi-fleet pause` and `resume` do."""
        return self.tool.mirror(self.api.say(pauses))

    def lose_everything(self):
        """Empty Redis, as FLUSHALL or a restart on an emptyDir does; then act as the worker."""
        self.client.flushall()
        self.queue.heartbeat()
        self.client.delete(NAMES["quiet"].full)  # the quiet period of the new epoch is over

    def admitted(self):
        """Add a new claim and return the number of messages that the worker receives."""
        self.sent.clear()
        self.queue.add([claim_key("d", "ns", "one", "u1")])
        self.queue.declared.declare()
        self.queue.pump(period_seconds=0)
        return len(self.sent)

    def paused(self, lane="claims|d"):
        return self.queue.stats()[lane].paused


@pytest.fixture
def world(redis_client):
    return World(redis_client)


def test_nothing_of_a_paused_driver_is_admitted_after_a_wipe(world):
    """After a loss of data no key of a paused driver is taken.

    For example, Redis' node is drained while an array is in maintenance.
    """
    world.say(FIRMWARE)
    world.lose_everything()
    assert world.admitted() == 0
    assert world.paused() == {"operator": "firmware"}


def test_without_a_pause_work_goes_on_after_a_wipe(world):
    world.lose_everything()
    assert world.admitted() == 1


def test_a_resume_admits_what_waited_and_outlives_a_wipe(world):
    world.say(FIRMWARE)
    assert world.admitted() == 0
    world.say({})
    assert len(world.sent) == 1
    world.lose_everything()
    assert world.admitted() == 1


def test_a_state_that_was_read_before_a_newer_one_changes_nothing(world):
    """An older state of the pauses does not replace a newer one, if two processes read at the same
    time as an operator changes them.
    """
    before = world.api.state()
    world.say(FIRMWARE)
    paused = world.api.state()
    assert not world.pauses.mirror(before)
    assert world.paused() == {"operator": "firmware"}
    world.say({})
    assert not world.pauses.mirror(paused)
    assert world.paused() == {}


def test_the_same_state_twice_is_one(world):
    world.say(FIRMWARE)
    assert world.pauses.mirror(world.api.state())
    assert world.paused() == {"operator": "firmware"}


def test_the_version_is_forgotten_after_a_minute(world):
    """The version of the pauses expires after a minute.

    After a restore of etcd, resourceVersions begin lower, and pauses must still be mirrored.
    """
    world.say(FIRMWARE)
    assert 0 < world.client.pttl(NAMES["pauses_version"].full) <= 60_000
    assert world.client.pttl(NAMES["pauses"].full) == -1, "a pause holds without a watcher"


def test_redis_that_lost_the_last_word_gets_it_with_the_next_look(world):
    """A pause that Redis lost returns with the next
    mirroring, for example after the promotion of a replica.
    """
    world.say(FIRMWARE)
    world.client.delete(NAMES["pauses"].full)
    world.pauses.mirror(world.api.state())
    assert world.paused() == {"operator": "firmware"}


def test_nothing_is_admitted_until_the_pauses_are_known(world):
    world.say(FIRMWARE)
    world.api.error = Unreachable("no route")
    world.lose_everything()
    assert world.admitted() == 0
    assert world.queue.stats()["claims|d"].limits is None
    world.api.error = None
    assert world.admitted() == 0
    assert world.paused() == {"operator": "firmware"}


def test_what_the_watcher_mirrored_is_not_asked_for_again(world):
    """A worker does not read pauses that the watcher
    has mirrored, so it does not need the API server.
    """
    world.say(FIRMWARE)
    world.lose_everything()
    world.tool.mirror(world.api.state())
    world.api.error, world.api.reads = Unreachable("no route"), 0
    assert world.admitted() == 0
    assert world.queue.stats()["claims|d"].limits is not None
    assert world.api.reads == 0


def test_roles_of_before_stop_no_work(world, caplog):
    world.api.error = ForbiddenError(403, "Forbidden", "configmaps is forbidden")
    world.lose_everything()
    assert world.admitted() == 1
    assert "this worker is not allowed to read the ConfigMap with the pauses" in caplog.messages


def test_a_driver_on_a_new_node_is_paused_too(world):
    world.say(FIRMWARE)
    world.queue.set_limits("claims|d@node-2", 10)
    assert world.paused("claims|d@node-2") == {"operator": "firmware"}
    world.sent.clear()
    world.queue.add([claim_key("d@node-2", "ns", "one", "u1"), claim_key("e", "ns", "two", "u2")])
    world.queue.set_limits("claims|e", 10)
    assert world.sent == ["drv.e"], "another driver is not"
    world.say({})
    assert world.sent == ["drv.e", "drv.d@node-2"]


def test_a_pause_that_is_over_stops_nothing(world):
    world.say({"driver d": "1 firmware"})
    assert world.admitted() == 1
    assert world.paused() == {}


def test_a_driver_without_workers_is_shown_as_paused(world):
    world.say({"driver other": "0 firmware"})
    assert world.paused("claims|other") == {"operator": "firmware"}


def test_classes_come_back_with_the_first_lane(world):
    world.say({"class gold": "0 audit"})
    world.lose_everything()
    world.queue.declared.declare()
    found = world.pauses.of_class("gold")
    assert found is not None
    assert found.reason == "audit"


def test_an_api_server_without_answer_is_no_error_of_the_lanes(world):
    """A worker starts without an answer of the API server, and `declare` tries again."""
    world.client.delete(NAMES["pauses_version"].full)
    world.api.error = Unreachable("no route")
    world.queue.set_limits("volumes|d", 10)
    assert isinstance(world.api.error, ApiError)
    assert world.queue.stats().get("volumes|d") is None
