"""Who is notified of an attempt: the claim's user and the capacity controller."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from csi_client.errors import CsiError
from tests.support.fake_cluster import DRIVER, World
from workers.engine.outcome import Action
from workers.errors import State


def test_p209_another_populator_is_told_of():
    """The claim is dropped, and its event says that an external populator provisions it."""
    world = World()
    world.add_class()
    source = {"kind": "MyPopulator", "apiGroup": "x.io", "name": "s"}
    assert world.claim_pass(world.add_claim(dataSourceRef=source)).action is Action.DONE
    message = "Assuming an external populator will provision the volume"
    assert world.events.seen[-1] == ("Normal", "Provisioning", message)
    assert (world.client.created, world.intents.intents) == ([], {})


class Told:
    """A fake capacity controller that records the outcomes it is notified of."""

    def __init__(self, world):
        self.outcomes = []
        world.runtime.parts["capacity"] = self

    def provisioned(self, driver, storage_class, outcome):
        assert (driver.name, storage_class) == (DRIVER, "fast")
        self.outcomes.append(outcome)


def test_cap030_capacity_hears_of_every_attempt(world, claim):
    told = Told(world)
    world.client.answers = [CsiError(8, "full"), CsiError(4, "late")]
    for _ in range(3):
        world.claim_pass(claim)
    *failed, volume = told.outcomes
    assert failed == [State.FINISHED, State.BACKGROUND]
    assert volume["metadata"]["name"] == "pvc-u1"


def test_cap030_capacity_hears_of_what_another_provisions(world):
    """A populator may have used storage of the pool that the class names."""
    told = Told(world)
    world.add_class()
    source = {"kind": "MyPopulator", "apiGroup": "x.io", "name": "s"}
    world.claim_pass(world.add_claim(dataSourceRef=source))
    assert told.outcomes == [State.FINISHED]


@pytest.mark.parametrize(
    ("seconds", "is_told"),
    [(0, False), (30, False), (90, True), (86_400, True)],
    ids=["new", "in its first minute", "after it", "old"],
)
def test_a_pause_of_its_class_is_told_to_a_claim_that_waits_longer_than_a_minute(
    world, claim, seconds, is_told
):
    """An upgrade pauses classes briefly, so an event would only disturb."""
    told = []
    world.runtime.pauses = SimpleNamespace(of_class=lambda _: SimpleNamespace(reason="upgrade"))
    world.runtime.lasting = SimpleNamespace(tell=lambda key, cause: told.append(cause))
    made = datetime.now(UTC) - timedelta(seconds=seconds)
    world.live_claim()["metadata"]["creationTimestamp"] = made.isoformat()
    assert world.claim_pass(claim).action is Action.WAIT
    assert [(one.code, "upgrade" in one.text) for one in told] == [("class-paused", True)] * is_told
