"""The rules of one driver's keys: of those kinds that one list serves, made once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workers.controllers import catalogue
from workers.engine.controller import load
from workers.engine.lockrules import LockRules
from workers.queue.keys import Key
from workers.queue.kinds import place_of
from workers.queue.locks import Lock

CLAIM = Key("claims", "d", "ns/a", "u")


class Controller:
    """Counts how often it is asked."""

    def __init__(self):
        self.asked = []

    def locks(self, key, driver):
        self.asked.append((key.kind, driver))
        return (Lock(key.object),)


@pytest.fixture
def controllers():
    one = Controller()
    return dict.fromkeys(("claims", "volumes", "attachments"), one)


def test_kinds_of_one_list_have_a_line_each(controllers):
    found = LockRules().beside(CLAIM, "driver", controllers, None)
    assert found == "claims x:\1\nvolumes x:\1"


def test_a_kind_that_may_not_be_worked_on_has_none(controllers):
    """Another process has the Lease of a Go sidecar for it."""
    asked = []

    def may_work(kind, driver):
        asked.append((kind, driver))
        return kind == "volumes"

    assert LockRules().beside(CLAIM, "driver", controllers, may_work) == "volumes x:\1"
    assert asked == [("claims", "d"), ("volumes", "d")]


def test_they_are_made_once_for_each_driver_as_it_is(controllers):
    """One whose settings were read anew is another object."""
    rules, one = LockRules(), controllers["claims"]
    old, new = SimpleNamespace(name="d"), SimpleNamespace(name="d")
    for driver in (old, old, new, new):
        rules.beside(CLAIM, driver, controllers, None)
    assert one.asked == [(kind, driver) for driver in (old, new) for kind in ("claims", "volumes")]


def test_drivers_do_not_share_theirs(controllers):
    rules = LockRules()
    driver = SimpleNamespace(name="d")
    for name in ("d", "e", "d"):
        rules.beside(Key("claims", name, "ns/a", "u"), driver, controllers, None)
    assert len(controllers["claims"].asked) == 4


SETTINGS = SimpleNamespace(volume_name_prefix="pvc", volume_name_uuid_length=-1)
DRIVER = SimpleNamespace(settings=SimpleNamespace(provision=SETTINGS), name="d")


@pytest.mark.parametrize("kind", catalogue.kinds().values(), ids=lambda kind: kind.name)
def test_every_kind_of_every_controller_has_a_rule_that_names_its_own_locks(kind):
    """What a script would lock for a key is what the controller says of that key."""
    controller = next(
        load(spec.name) for spec in catalogue.SPECS if kind.name in {k.name for k in spec.kinds}
    )
    driver = DRIVER if kind.has_driver else None
    name = "d" if kind.has_driver else ""
    key = Key(kind.name, name, "ns-1/obj.a", "3f2b8c1e-7a64-4d0f-9b35-0c1d2e3f4a5b")
    rules = LockRules().beside(key, driver, {kind.name: controller}, None)
    assert place_of(name, kind.name)
    _, *locks = rules.split(" ")
    spelled = [one.replace("\1", key.object).replace("\2", key.uid) for one in locks]
    assert spelled == [lock.text for lock in controller.locks(key, driver)]
