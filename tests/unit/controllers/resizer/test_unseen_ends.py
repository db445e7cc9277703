"""Calls with unknown outcome: the worker died, or the driver went away (MR-010, MR-033)."""

from __future__ import annotations

import pytest

from csi_client import errors
from csi_client.errors import CsiError
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


def fails(end):
    """Return a call whose outcome no worker gets."""

    def call(_):
        raise end

    return call


# Sizes.


@pytest.mark.parametrize("end", UNSEEN)
def test_mr031_a_call_without_an_end_is_no_answer_full(end):
    """MR-031, I-2: After three answers "full", the fourth call expands the volume.

    Its answer is lost.
    """
    world = ResizerWorld(exhausted_is_final=True)
    world.claim(10, 1)
    storage = []

    def grows_unheard(request):
        storage.append(request.capacity_range.required_bytes / GIB)
        raise end

    world.client.respond({"ControllerExpandVolume": [{**FULL, "times": 3}, grows_unheard, {}]})
    for _ in range(3):
        world.run()
    world.let_pass(60)
    with pytest.raises(type(end)):
        world.run()
    assert storage == [10]
    world.resize(5)
    world.run()
    assert world.sizes()[-1] == 10


@pytest.mark.parametrize("end", UNSEEN)
def test_mr031_after_a_call_without_an_end_it_takes_three_answers_again(end):
    """MR-031: Answers "full" must follow each other directly."""
    world = ResizerWorld(exhausted_is_final=True)
    world.claim(10, 1)
    world.client.respond({"ControllerExpandVolume": [FULL, FULL, fails(end), FULL, FULL, FULL, {}]})
    for _ in range(2):
        world.run()
    with pytest.raises(type(end)):
        world.run()
    world.resize(5)
    for _ in range(3):
        world.let_pass(60)
        world.run()
    assert world.sizes() == [10] * 6
    world.let_pass(60)
    world.run()
    assert world.sizes()[-1] == 5


# Classes.


@pytest.mark.parametrize("end", UNSEEN)
def test_dr027_a_deleted_class_does_not_block_its_claim(end):
    """DR-027: The parameters are kept before the first call, so the call can be repeated."""
    world = wanting("b", "a")
    world.modifies(fails(end), {})
    with pytest.raises(type(end)):
        world.run()
    assert progress(world) == ("InProgress", "b")
    world.api.drop(paths.ATTRIBUTES_CLASSES, "b")
    world.choose("c")
    world.run()
    world.let_pass(12)
    world.run()
    assert classes(world) == ["b", "b", "c"]
    assert world.seen["status"]["currentVolumeAttributesClassName"] == "c"


def current(world):
    return world.seen["status"]["currentVolumeAttributesClassName"]


def overtaken(*answers, timeout_seconds=10.0):
    """Return a world whose first call for class b has a dead worker; later calls get `answers`."""
    world = wanting("b", "a", timeout_seconds=timeout_seconds)
    world.modifies(fails(Death("modify")), *answers)
    with pytest.raises(Death):
        world.run()
    return world


def dies_in_its_call(world):
    """Let the first call's worker die; return the storage, and a function that ends that call."""
    storage, out = {"tier": "a"}, []

    def dies(request):
        out.append(request)
        raise Death("modify")

    def applies(request):
        storage["tier"] = request.mutable_parameters["tier"]
        return {}

    world.modifies(dies, applies)
    with pytest.raises(Death):
        world.run()
    return storage, lambda: applies(out[0])


def test_mr010_the_storage_has_the_class_that_the_claim_tells():
    """MR-010, I-2: The dead worker's call for b ends within its deadline, after b and c."""
    world = wanting("b", "a")
    storage, ends = dies_in_its_call(world)
    world.run()
    assert (current(world), progress(world)) == ("b", (None, None))
    world.choose("c")
    for _ in range(3):
        if world.run().delay_seconds > 0:
            break
    ends()
    for _ in range(3):
        world.run()
    assert storage["tier"] == current(world)


def test_mr010_another_class_waits_for_the_deadline_and_no_longer():
    """MR-010: One second is added for differing clocks; the same class does not wait."""
    world = overtaken({}, timeout_seconds=7.0)
    outcome = world.run()
    assert current(world) == "b"
    assert (outcome.action.value, 7 < outcome.delay_seconds <= 8) == ("wait", True)
    world.choose("c")
    outcome = world.run()
    assert (outcome.action.value, 7 < outcome.delay_seconds <= 8) == ("wait", True)
    assert progress(world) == (None, None)
    world.let_pass(8)
    assert world.run().action.value == "done"
    assert (classes(world), current(world)) == (["b", "b", "c"], "c")
    assert world.queue.marks == {}


def test_mr010_what_was_overtaken_is_forgotten_after_its_deadline():
    """MR-020: The key is due once more for that."""
    world = overtaken({})
    outcome = world.run()
    world.let_pass(outcome.delay_seconds)
    assert world.run().action.value == "done"
    assert classes(world) == ["b", "b"]
    assert world.queue.marks == {}


@pytest.mark.parametrize("code", ["INTERNAL", "INVALID_ARGUMENT"])
def test_mr010_a_final_answer_to_a_successor_says_nothing_of_the_first_call(code):
    """R-101, MR-010: b is no longer pinned, but c waits anyway."""
    world = overtaken({"code": code}, {})
    world.run()
    world.choose("c")
    assert world.run().action.value == "wait"
    world.let_pass(12)
    world.run()
    assert (classes(world), current(world)) == (["b", "b", "c"], "c")


def test_mr010_the_last_of_several_dead_calls_counts():
    """MR-010: The outcome of later calls does not matter."""
    world = overtaken(fails(Death("modify")), {"code": "UNAVAILABLE"}, {})
    world.let_pass(5)
    with pytest.raises(Death):
        world.run()
    world.run()
    world.run()
    assert current(world) == "b"
    world.choose("c")
    assert 10 < world.run().delay_seconds <= 11


@pytest.mark.parametrize("code", ["UNAVAILABLE", "ABORTED", "INTERNAL"])
def test_mr010_after_calls_that_ended_nobody_waits(code):
    """MR-010: The driver's own answer ends a call, whatever its code is."""
    world = wanting("b", "a")
    world.modifies({"code": code}, {})
    world.run()
    assert world.run().action.value == "done"
    world.choose("c")
    assert world.run().action.value == "done"
    assert classes(world) == ["b", "b", "c"]


def test_mr010_an_answer_that_is_not_the_drivers_ends_nothing():
    """MR-010: The stream broke, and the call may continue."""
    world = wanting("b", "a")
    broken = CsiError(errors.INTERNAL, "broken", from_transport=True, is_final=False)
    world.modifies(broken, {})
    world.run()
    world.run()
    world.choose("c")
    assert world.run().delay_seconds > 9
    assert classes(world) == ["b", "b"]


@pytest.mark.parametrize("answer", [{}, {"code": "INVALID_ARGUMENT"}])
def test_mr010_an_end_that_stands_in_the_claim_needs_no_mark(answer):
    """MR-010: The worker dies between the claim and the key's state.

    Another class follows at once.
    """
    world = wanting("b", "a")
    world.modifies(answer, {})
    world.steps.dies_before = 4 if answer else 5
    with pytest.raises(Death, match="keep-mark"):
        world.run()
    world.steps.dies_before = None
    world.choose("c")
    assert world.run().action.value == "done"
    assert classes(world) == ["b", "c"]
