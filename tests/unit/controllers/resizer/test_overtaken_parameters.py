"""A class made anew under its name is another one for a call that was overtaken (MR-010)."""

from __future__ import annotations

import pytest

from tests.support.fake_context import Death
from tests.unit.controllers.resizer.test_modify import wanting
from tests.unit.controllers.resizer.test_unseen_ends import current
from workers.kube import paths


def test_mr010_the_storage_has_what_the_class_says_that_the_claim_tells():
    """The dead worker's call, with the old parameters, ends within its deadline."""
    world = wanting("b", "a")
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
    world.api.drop(paths.ATTRIBUTES_CLASSES, "b")
    world.attributes_class("b", tier="anew")
    for _ in range(3):
        if world.run().delay_seconds > 0:
            break
    applies(out[0])  # the dead worker's, within its deadline
    world.let_pass(12)
    for _ in range(3):
        world.run()
    assert current(world) == "b"
    assert storage["tier"] == "anew"


LONG = {f"p{number}": "x" * 100 for number in range(100)}


def test_mr010_parameters_that_are_too_many_to_be_remembered():
    world = wanting("b", "a")
    world.api.drop(paths.ATTRIBUTES_CLASSES, "b")
    world.attributes_class("b", tier="b", **LONG)
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
    world.api.drop(paths.ATTRIBUTES_CLASSES, "b")
    world.attributes_class("b", tier="anew", **LONG)
    for _ in range(3):
        if world.run().delay_seconds > 0:
            break
    applies(out[0])  # the dead worker's, within its deadline
    world.let_pass(12)
    for _ in range(3):
        world.run()
    assert current(world) == "b"
    assert storage["tier"] == "anew"
