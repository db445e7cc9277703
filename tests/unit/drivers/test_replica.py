"""Which replica this process connects to, and when it is allowed to call it."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from workers.drivers.replica import Replica
from workers.errors import DriverAway


class World:
    def __init__(self, *found, address="", chosen=""):
        self.now = 100.0
        self.replica = Replica(
            "csi.svc", 1, address, chosen, resolve=lambda *_: list(found), clock=lambda: self.now
        )
        self.replica.admit(address, self.now, 0, math.inf)

    def call(self, seconds=10, error=None):
        with self.replica.call(seconds):
            if error is not None:
                raise error


@pytest.mark.parametrize(
    ("address", "chosen", "is_connected", "wanted"),
    [
        pytest.param("", "", True, "a", id="first"),
        pytest.param("", "b", True, "b", id="chosen"),
        pytest.param("a", "b", True, "b", id="to the chosen"),
        pytest.param("b", "b", True, "", id="stays"),
        pytest.param("b", "gone", True, "", id="chosen has no address any more"),
        pytest.param("", "gone", True, "a", id="first of those that are left"),
        pytest.param("b", "b", False, "c", id="the next one"),
        pytest.param("c", "c", False, "a", id="around"),
        pytest.param("bb", "bb", False, "c", id="after one that is gone"),
        pytest.param("a", "b", False, "b", id="a worker that lost another"),
    ],
)
def test_where_to(address, chosen, is_connected, wanted):
    world = World("a", "b", "c", address=address, chosen=chosen)
    assert world.replica.next(is_connected=is_connected) == wanted


@pytest.mark.parametrize("is_connected", [True, False])
def test_without_an_answer_of_dns_the_connection_stays(is_connected):
    assert World(address="a", chosen="b").replica.next(is_connected=is_connected) == ""
    assert World("a", address="a").replica.next(is_connected=is_connected) == ""


def test_calls_are_made_only_while_redis_counts_the_process_as_connected():
    world = World()
    world.replica.admit("", world.now, 3, 15)
    with pytest.raises(DriverAway):
        world.call()
    world.now += 3
    world.call()
    world.now += 11.9
    world.replica.renew(world.now, 15)
    world.now += 14.9
    world.call()
    world.now += 0.2
    with pytest.raises(DriverAway):
        world.call()
    world.replica.revoke()
    world.replica.renew(world.now, 15)
    with pytest.raises(DriverAway):
        world.call()


def test_the_hold_counts_from_the_answer_and_the_word_from_the_question():
    """Redis counted both from some moment in between."""
    world = World()
    asked, answered = world.now, world.now + 10
    world.now = answered
    world.replica.admit("", asked, 3, 15)
    for later, is_allowed in ((2.9, False), (3, True), (4.9, True), (5, False)):
        world.now = answered + later
        with nullcontext() if is_allowed else pytest.raises(DriverAway):
            world.call()


def test_an_answer_about_another_replica_admits_no_call():
    """The connection moved to another replica while Redis answered."""
    world = World("a", "b", address="a")
    world.replica.revoke()
    world.replica.address = "b"
    assert not world.replica.admit("a", world.now, 0, 15)
    with pytest.raises(DriverAway):
        world.call()
    assert world.replica.admit("b", world.now, 0, 15)
    world.call()


@pytest.mark.parametrize(
    ("error", "is_open"),
    [
        (None, False),
        (CsiError(errors.INTERNAL, "x"), False),
        (CsiError(errors.UNAVAILABLE, "x"), True),
        (CsiError(errors.CANCELLED, "x"), True),
        (CsiError(errors.DEADLINE_EXCEEDED, "x"), True),
    ],
)
def test_a_call_without_an_answer_is_open_until_its_deadline(error, is_open):
    world = World()
    try:
        world.call(10, error)
    except CsiError:
        world.now += 1
    assert world.replica.open_seconds() == (10 if is_open else 0), "with a second of margin"
    world.now += 10
    assert world.replica.open_seconds() == 0


def test_a_running_call_is_open():
    world = World()
    with world.replica.call(30), world.replica.call(10):
        assert world.replica.open_seconds() == 31
    assert world.replica.open_seconds() == 0
