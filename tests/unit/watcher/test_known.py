"""Drivers stay known, nodes go, and records say which controllers their workers run."""

from __future__ import annotations

import pytest

from watcher.known import concerns, merged
from workers.spec import Spec


def test_absent_driver_stays_known_but_an_absent_node_goes():
    """Keys of a driver without live worker wait; those of a removed node would for ever."""
    known = merged({}, {"foo": {"name": "foo"}, "local@n1": {"name": "local", "node": "n1"}})
    assert set(merged(known, {})) == {"foo"}


def test_a_record_without_its_name_gets_it_from_its_place_in_the_registry():
    (record,) = merged({}, {"foo@n1": {"node": "n1"}}).values()
    assert (record["name"], record["queue_name"]) == ("foo", "foo@n1")


@pytest.mark.parametrize(
    ("record", "controller", "expected"),
    [
        pytest.param({}, "provisioner", True, id="provisioner unless said"),
        pytest.param({}, "capacity", True, id="capacity comes with the provisioner"),
        pytest.param({}, "attacher", False, id="others must be named"),
        pytest.param({"controllers": ["attacher"]}, "attacher", True, id="named"),
        pytest.param({"controllers": ["attacher"]}, "provisioner", False, id="others named"),
        pytest.param({"controllers": ["attacher"]}, "capacity", False, id="not its controller"),
    ],
)
def test_whose_driver_it_is(record, controller, expected):
    part_of = "provisioner" if controller == "capacity" else ""
    spec = Spec(controller, "", (), (), dict, part_of=part_of)
    assert concerns(record, spec) is expected
