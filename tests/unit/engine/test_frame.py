"""A defect of csi-fleet in a reconcile: the key stays, backs off, and is reported (issue 10)."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.crash_world import UID, VOLUME, CrashWorld
from tests.support.taking import due_keys, take
from workers.controllers.provisioner.claims import sync_claim
from workers.controllers.provisioner.controller import CONTROLLER
from workers.controllers.provisioner.spec import SPEC
from workers.engine.frame import AWAY_SECONDS, FULL_SECONDS, run
from workers.engine.outcome import blocked, done, retry, wait
from workers.engine.steps import Step
from workers.errors import QueueFull, QueueUnavailable
from workers.explain.claims import claim_cause
from workers.explain.facts import ClaimFacts
from workers.observability import trail
from workers.observability.logging import configure_logging
from workers.queue.inspect import read_key
from workers.queue.keys import claim_key, volume_key
from workers.queue.locks import Lock

DRIVER = "d"
SECRET = "hunter2"


class DefectError(Exception):
    """A defect of csi-fleet whose text holds a secret that must not be logged."""


@pytest.fixture
def lines():
    """Return a function that reads the log as JSON objects, one per line."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging("json", 4, stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def world(redis_client):
    return CrashWorld(redis_client)


class Broken:
    """One reconcile of a claim that raises at a given place, and its key's state afterwards."""

    def __init__(self, world: CrashWorld) -> None:
        self.world = world
        world.add_claim()
        self.owner = world.owner()
        self.key = claim_key(world.driver.name, "default", "data", UID)

    def once(self, locks=lambda key, driver: (Lock(VOLUME),), work=None):
        self.world.watcher()
        self.owner.queue.pump(period_seconds=0)
        self.world.messages.clear()
        controller = SimpleNamespace(spec=SPEC, locks=locks, sync=work or self.raises)
        run(self.owner.runtime, {"claims": controller}, self.key.driver)

    def raises(self, *_):
        raise DefectError(f"password={SECRET}")

    def count(self) -> float:
        counter = self.owner.runtime.metrics.unexpected_errors
        return counter.labels("claims", self.world.driver.name)._value.get()

    def state(self):
        return read_key(self.world.client, self.key)

    def cause(self):
        claim = self.world.kube.get_claim("default", "data")
        name = self.world.driver.name
        return claim_cause(
            ClaimFacts(
                "default",
                "data",
                now=self.world.now_ms / 1000,
                claim=claim,
                class_name="fast",
                storage_class=self.world.storage_class,
                driver_name=name,
                driver={"name": name},
                state=self.state(),
                watchers=1,
                workers=1,
            )
        )


def test_a_defect_backs_off_and_is_told(world, lines):
    broken = Broken(world)
    broken.once()
    state = broken.state()
    assert (state.fails, state.lease) == (1, None)
    assert state.due > world.now_ms / 1000
    cause = broken.cause()
    assert cause.code == "internal-error"
    assert "csi-fleet failed with an unexpected DefectError at test_frame.py:" in cause.text
    assert broken.key.text in cause.advice
    assert "Attempt 2 starts at " in cause.advice
    assert SECRET not in cause.text + "".join(note.detail for note in state.trail)
    assert broken.count() == 1
    told = [line for line in lines() if "unexpected error" in line["msg"]]
    assert [line["key"] for line in told] == [broken.key.text]
    assert told[0]["claim"] == "default/data"
    assert "in raises" in told[0]["stacktrace"]


def test_the_key_is_finished_once_the_defect_is_gone(world, lines):
    broken = Broken(world)
    broken.once()
    world.live(broken.owner)
    assert world.kube.get_volume(VOLUME)["status"]["phase"] == "Bound"
    assert world.waiting() == []


def test_a_defect_at_the_end_of_a_pass_keeps_no_lease(world, lines):
    """Otherwise the process would keep renewing the lease of a key that no thread works on."""
    broken = Broken(world)
    real = broken.owner.steps.reach

    def reach(step, lease):
        if step is Step.FINISH_KEY:
            raise DefectError
        real(step, lease)

    broken.owner.steps.reach = reach
    broken.once(work=sync_claim)
    state = broken.state()
    assert state.lease is None
    assert state.due
    assert broken.count() == 1
    broken.owner.steps.reach = real
    world.live(broken.owner)
    assert world.waiting() == []


def test_a_defect_before_the_locks_gives_the_key_back(world, lines):
    broken = Broken(world)

    def locks(key, driver):
        raise DefectError

    broken.once(locks)
    assert broken.count() == 1
    assert broken.state().is_known
    world.live(broken.owner)
    assert world.kube.get_volume(VOLUME)["status"]["phase"] == "Bound"


def test_a_driver_s_own_retry_interval_counts(world):
    """The drivers of one worker may have different settings."""
    provision = replace(
        world.settings.provision, retry_interval_start_seconds=7, retry_interval_max_seconds=100
    )
    settings = replace(world.settings, provision=provision)
    world.driver = replace(world.driver, settings=settings)
    broken = Broken(world)
    broken.once()
    assert broken.state().due == world.now_ms / 1000 + 7


@pytest.mark.parametrize(
    ("problem", "seconds"), [(QueueUnavailable, AWAY_SECONDS), (QueueFull, FULL_SECONDS)]
)
def test_a_pass_that_redis_stops_comes_back_without_a_back_off_step(world, problem, seconds):
    """While Redis is full, keys that wait for an intent are not retried every second."""

    def stopped(*_):
        raise problem("redis: no")

    broken = Broken(world)
    broken.once(work=stopped)
    state = broken.state()
    assert (state.fails, state.due) == (0, world.now_ms / 1000 + seconds)


def test_a_key_that_found_a_lock_busy_waits_until_it_is_free(world):
    """It is not a failure, and the key is not retried until the lock is free."""
    broken = Broken(world)
    queue, other = broken.owner.queue, volume_key(world.driver.name, "other")
    queue.add([other])
    holder = take(queue, other, "busy")
    broken.once(work=lambda *_: blocked(Lock("busy")))
    state = broken.state()
    assert (state.blocked_by, state.fails) == (other.text, 0)
    assert due_keys(world.client) == []
    queue.done(holder)
    assert due_keys(world.client) == [broken.key]


@pytest.mark.parametrize("outcome", [done("well"), retry("not yet"), wait(5, "later")], ids=str)
def test_the_reason_of_a_passs_end_is_kept(world, outcome):
    """It is the last entry about a reconcile that `explain` shows."""
    broken = Broken(world)
    broken.once(work=lambda *_: outcome)
    told = [(note.event, note.detail) for note in broken.state().trail]
    assert ("end", outcome.reason) in told


def test_a_failed_pass_is_not_told_as_finished(world):
    """The sidecar's name for the state of a failed attempt, "finished", would read like success."""

    def work(*_):
        trail.note("error", "on fire")
        return retry("finished")

    broken = Broken(world)
    broken.once(work=work)
    told = [(note.event, note.detail) for note in broken.state().trail]
    assert ("end", "failed") in told
    assert ("end", "finished") not in told


def test_every_line_of_a_pass_carries_its_key(world, lines):
    """The log lines of a reconcile share one set of fields: key, claim and driver."""
    broken = Broken(world)
    world.live(broken.owner)
    ended = [line for line in lines() if line["msg"] == "pass ended"]
    assert {line["result"] for line in ended} >= {"provisioned"}
    assert {(line["key"], line["claim"], line["driver"]) for line in ended} == {
        (broken.key.text, "default/data", world.driver.name)
    }


def test_a_key_that_others_must_work_on_is_not_taken(world):
    """COR-5: the key stays queued for a peer, and nothing is written."""
    broken = Broken(world)
    broken.owner.runtime.may_work = lambda kind, queue_name: False
    broken.once(work=lambda *_: pytest.fail("nothing may be worked on"))
    assert world.storage.calls == []
    assert world.client.hkeys("csi-fleet:leases") == []


def test_a_pass_ends_before_its_next_effect_when_others_may_work(world):
    """COR-6: it emits no event and counts no failure; the next owner continues from the intent."""
    broken = Broken(world)
    asked = []
    broken.owner.runtime.may_work = lambda kind, queue_name: len(asked) < 1
    reach = broken.owner.steps.reach

    def reached(step, lease):
        if step is Step.CREATE_VOLUME:
            asked.append((lease.key.kind, lease.key.driver))
        reach(step, lease)

    broken.owner.steps.reach = reached
    broken.once(locks=CONTROLLER.locks, work=CONTROLLER.sync)
    assert asked == [("claims", world.driver.name)]
    assert world.storage.calls == []
    assert world.events.warnings() == []
    broken.owner.runtime.may_work = None
    world.live(broken.owner)
    assert world.storage.calls == ["create"]
