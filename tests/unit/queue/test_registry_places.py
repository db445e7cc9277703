"""Workers of one driver with different controllers appear as one driver; none is overwritten."""

from __future__ import annotations

from types import SimpleNamespace

from tests.support.dummy.echo.controller import CONTROLLER as ECHO
from workers.config.settings import Settings
from workers.controllers.provisioner.controller import CONTROLLER as PROVISIONER
from workers.drivers.announcing import Announcing
from workers.queue.kinds import places
from workers.queue.registry import DriverRegistry

DRIVER = SimpleNamespace(
    queue_name="d",
    name="d",
    record=lambda: {"name": "d", "queue_name": "d"},
    supports_topology=True,
    settings=Settings(),
)


def test_their_records_are_one_with_all_controllers(redis_client):
    registry = DriverRegistry(redis_client)
    for controller in (ECHO, PROVISIONER):
        Announcing(Settings(), [controller]).register(DRIVER, registry)
    record = registry.alive()["d"]
    assert record["controllers"] == ["echo", "provisioner"]
    assert record["topology"], "what one of them alone knows"
    assert list(registry.alive()) == ["d"]


def test_one_that_comes_back_changes_nothing(redis_client):
    """Each renews its own record, and the watcher sees no change, however often they do."""
    registry = DriverRegistry(redis_client)
    kept = [Announcing(Settings(), [one]) for one in (ECHO, PROVISIONER)]
    for announcing in kept:
        announcing.register(DRIVER, registry)
    registry.alive()
    version = registry.version
    for announcing in kept * 2:
        announcing.register(DRIVER, registry)
    registry.alive()
    assert registry.version == version


def test_a_worker_with_both_has_a_place_of_its_own():
    both = Announcing(Settings(), [PROVISIONER, ECHO]).place("d")
    assert (
        len({both, *(Announcing(Settings(), [one]).place("d") for one in (PROVISIONER, ECHO))}) == 3
    )


def test_neither_fetches_the_others_tickets():
    assert not places("d", [PROVISIONER.spec]) & places("", [PROVISIONER.spec])
    assert places("d", [PROVISIONER.spec]) == {"d"}
