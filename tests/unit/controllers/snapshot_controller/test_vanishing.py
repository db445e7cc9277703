"""SND-041: A snapshot vanishes without a deletion, at any point of its reconcile.

The API server may accept csi-fleet's finalizer and still complete a deletion that began before it
(kubernetes/kubernetes#77988). Then the object is gone, and no other process looks for its content.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.support.snapshot_world import CONTENT, SnapshotWorld, notes
from workers import constants as k
from workers.controllers.snapshot_controller import vanishing
from workers.kube import paths
from workers.kube.errors import ForbiddenError, NotFoundError, ServerError
from workers.translate.fields import is_deleting

STATUS = "volumesnapshots/s/status"
REFUSALS = (ServerError(500, "", "etcd"), ForbiddenError(403, "Forbidden", "no"))
UNSERVED = NotFoundError(404, "NotFound", "the server could not find the requested resource")


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(vanishing, "PAUSE_SECONDS", 0.0)


def new_world(policy: str = "Delete") -> SnapshotWorld:
    world = SnapshotWorld()
    world.add_class(deletionPolicy=policy)
    world.add_source()
    world.add_snapshot()
    return world


def drop(world: SnapshotWorld) -> None:
    world.api.drop(paths.SNAPSHOTS, "s", "ns")


def requests(policy: str) -> list[tuple[str, str, str, int]]:
    """Return policy, verb, path and number of earlier ones for each request of a full reconcile."""
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
    """Drop the snapshot just before such a request, after `earlier` earlier ones."""
    happens = (lambda: before(world, verb, path, earlier - 1)) if earlier else lambda: drop(world)
    world.api.before(verb, path, happens)


@pytest.mark.parametrize(
    ("policy", "verb", "path", "earlier"), [*requests("Delete"), *requests("Retain")]
)
def test_no_content_is_left_whenever_it_goes(policy, verb, path, earlier):
    """SND-041: It vanishes before each request; with policy Retain the content stays as usual."""
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
    """The name exists again with another UID and has its own content."""
    world = new_world()

    def replace_snapshot() -> None:
        drop(world)
        world.add_snapshot(metadata={"uid": "u2"})

    world.api.before("patch", "volumesnapshots/s", replace_snapshot)
    assert world.run_snapshot().reason == "gone meanwhile"
    assert world.run_snapshot().action.value == "done"
    assert not is_deleting(world.content("snapcontent-u2"))
    assert world.content(CONTENT) is None


@pytest.mark.parametrize("error", [*REFUSALS, UNSERVED], ids=str)
@pytest.mark.parametrize("verb", ["get", "patch", "delete"])
def test_a_request_that_fails_beside_it_hides_nothing(verb, error):
    """Each request of the clean-up fails once."""
    world = new_world()

    def gone():
        drop(world)
        world.api.fail(verb, "volumesnapshotcontents", error)

    world.api.before("patch", STATUS, gone)
    world.run_snapshot()
    assert is_deleting(world.content())


@pytest.mark.parametrize("error", REFUSALS, ids=str)
def test_a_status_that_cannot_be_written_hides_nothing(error):
    world = new_world()

    def gone():
        drop(world)
        world.api.fail("patch", STATUS, error)

    world.api.before("create", "volumesnapshotcontents", gone)
    with suppress(ServerError):  # the engine retries, and finds the snapshot gone
        world.run_snapshot()
    assert is_deleting(world.content())


def made_ready(world: SnapshotWorld) -> None:
    """Make the content ready, so that the next reconcile has something to write."""
    world.run_snapshot()
    status = {"snapshotHandle": "sh", "readyToUse": True}
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, {"status": status})


@pytest.mark.parametrize("error", [UNSERVED, REFUSALS[0]], ids=str)
@pytest.mark.parametrize("is_new", [False, True])
def test_a_kind_that_is_not_served_for_a_moment_costs_no_content(is_new, error):
    """While its CRD is replaced, a 404 proves nothing about the object."""
    world = new_world()
    if not is_new:
        made_ready(world)

    def unserved():
        world.api.fail("get", "volumesnapshots/s", UNSERVED)
        raise error

    world.api.before("patch", STATUS, unserved)
    with suppress(ServerError):  # the engine retries
        world.run_snapshot()
    assert world.snapshot() is not None
    assert not is_deleting(world.content())


def test_a_snapshot_removed_by_force_leaves_its_content():
    """It had its finalizers, which somebody removed by hand."""
    world = new_world()
    made_ready(world)
    world.api.before("patch", STATUS, lambda: drop(world))
    world.run_snapshot()
    assert not is_deleting(world.content())
