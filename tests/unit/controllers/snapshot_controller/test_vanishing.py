"""SND-041: a snapshot goes without its deletion, at whatever moment of its pass.

The API server may answer with success to our finalizer and to a deletion that began before it
(kubernetes/kubernetes#77988): then the object is gone, and nobody else looks for its content.
"""

from __future__ import annotations

import pytest

from tests.support.snapshot_world import CONTENT, SnapshotWorld, notes
from workers import constants as k
from workers.kube import paths
from workers.translate.fields import is_deleting


def new_world(policy: str = "Delete") -> SnapshotWorld:
    world = SnapshotWorld()
    world.add_class(deletionPolicy=policy)
    world.add_source()
    world.add_snapshot()
    return world


def drop(world: SnapshotWorld) -> None:
    world.api.drop(paths.SNAPSHOTS, "s", "ns")


def requests(policy: str) -> list[tuple[str, str, str, int]]:
    """Policy, verb, path and how often they came before, of a pass from nothing to bound."""
    world = new_world(policy)
    world.run_snapshot()
    seen = [(one.verb, one.path) for one in world.api.requests]
    return [
        (
            policy,
            verb,
            path,
            sum(verb == other and path in longer for other, longer in seen[:number]),
        )
        for number, (verb, path) in enumerate(seen)
    ]


def before(world: SnapshotWorld, verb: str, path: str, earlier: int) -> None:
    """The snapshot goes just before such a request, after so many earlier ones."""
    happens = (lambda: before(world, verb, path, earlier - 1)) if earlier else lambda: drop(world)
    world.api.before(verb, path, happens)


@pytest.mark.parametrize(
    ("policy", "verb", "path", "earlier"), [*requests("Delete"), *requests("Retain")]
)
def test_no_content_is_left_whenever_it_goes(policy, verb, path, earlier):
    """Before each request; with policy Retain it stays, as after any deletion."""
    world = new_world(policy)
    before(world, verb, path, earlier)
    world.run_snapshot()
    assert world.snapshot() is None
    assert world.run_snapshot().reason == "gone"
    content = world.content()
    if content is not None:
        assert is_deleting(content) == (policy == "Delete")
        assert notes(content)[k.ANN_BEING_DELETED] == "yes"


def test_a_content_of_another_life_of_the_name_stays():
    """The name is back with another UID, and so is a content of that one."""
    world = new_world()

    def replace_snapshot() -> None:
        drop(world)
        world.add_snapshot(metadata={"uid": "u2"})

    world.api.before("patch", "volumesnapshots/s", replace_snapshot)
    world.run_snapshot()
    assert world.run_snapshot().action.value == "done"
    assert not is_deleting(world.content("snapcontent-u2"))
    assert world.content(CONTENT) is None
