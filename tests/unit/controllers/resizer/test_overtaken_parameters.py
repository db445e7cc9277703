"""A recreated class counts as another class while a dead worker's call may run (MR-010)."""

from __future__ import annotations

import pytest

from tests.unit.controllers.resizer.test_modify import wanting
from tests.unit.controllers.resizer.test_unseen_ends import current, dies_in_its_call
from workers.kube import paths

# More than the key's state can hold.
MANY = {f"p{number}": "x" * 100 for number in range(100)}


@pytest.mark.parametrize("others", [{}, MANY], ids=["few parameters", "many"])
def test_mr010_the_storage_has_what_the_class_says_that_the_claim_tells(others):
    """The dead worker's call, with the old parameters, ends within its deadline."""
    world = wanting("b", "a")
    world.api.drop(paths.ATTRIBUTES_CLASSES, "b")
    world.attributes_class("b", tier="b", **others)
    storage, ends = dies_in_its_call(world)
    world.api.drop(paths.ATTRIBUTES_CLASSES, "b")
    world.attributes_class("b", tier="anew", **others)
    for _ in range(3):
        if world.run().delay_seconds > 0:
            break
    ends()
    world.let_pass(12)
    for _ in range(3):
        world.run()
    assert current(world) == "b"
    assert storage["tier"] == "anew"
