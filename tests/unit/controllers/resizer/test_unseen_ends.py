"""Calls whose end nobody saw: the worker died in them, or the driver went away (MR-010, MR-033)."""

from __future__ import annotations

import pytest

from tests.support.fake_context import Death
from tests.support.resizer_world import GIB, ResizerWorld
from tests.unit.controllers.resizer.test_modify import classes, progress, wanting
from workers.errors import DriverAway
from workers.kube import paths

FULL = {"code": "RESOURCE_EXHAUSTED", "message": "full"}
UNSEEN = [
    pytest.param(DriverAway("the driver is away"), id="the driver goes away"),
    pytest.param(Death("call"), id="the worker dies"),
]


def age(world, seconds):
    """The last answer, if one is remembered, came that much earlier."""
    for mark in world.queue.marks.values():
        mark.get("expand", {"at": 0.0})["at"] -= seconds


def fails(end):
    """A call that nobody hears the end of."""

    def call(_):
        raise end

    return call


# Sizes.


@pytest.mark.parametrize("end", UNSEEN)
def test_mr031_a_call_without_an_end_is_no_answer_full(end):
    """MR-031, I-2: after three answers "full" the fourth call makes the volume, unheard."""
    world = ResizerWorld(exhausted_is_final=True)
    world.claim(10, 1)
    storage = []

    def grows_unheard(request):
        storage.append(request.capacity_range.required_bytes / GIB)
        raise end

    world.client.respond({"ControllerExpandVolume": [{**FULL, "times": 3}, grows_unheard, {}]})
    for _ in range(3):
        world.run()
    age(world, 60)
    with pytest.raises(type(end)):
        world.run()
    assert storage == [10]
    world.resize(5)
    world.run()
    assert world.sizes()[-1] == 10


@pytest.mark.parametrize("end", UNSEEN)
def test_mr031_after_a_call_without_an_end_it_takes_three_answers_again(end):
    """MR-031: answers "full" count in a row."""
    world = ResizerWorld(exhausted_is_final=True)
    world.claim(10, 1)
    world.client.respond({"ControllerExpandVolume": [FULL, FULL, fails(end), FULL, FULL, FULL, {}]})
    for _ in range(2):
        world.run()
    with pytest.raises(type(end)):
        world.run()
    world.resize(5)
    for _ in range(3):
        age(world, 60)
        world.run()
    assert world.sizes() == [10] * 6
    age(world, 60)
    world.run()
    assert world.sizes()[-1] == 5


# Classes.


@pytest.mark.parametrize("end", UNSEEN)
def test_dr027_a_deleted_class_does_not_block_its_claim(end):
    """DR-027: what it said is kept before the first call, so that call can be repeated."""
    world = wanting("b", "a")
    world.modifies(fails(end), {})
    with pytest.raises(type(end)):
        world.run()
    assert progress(world) == ("InProgress", "b")
    world.api.drop(paths.ATTRIBUTES_CLASSES, "b")
    world.choose("c")
    world.settle()
    assert classes(world) == ["b", "b", "c"]
    assert world.seen["status"]["currentVolumeAttributesClassName"] == "c"
