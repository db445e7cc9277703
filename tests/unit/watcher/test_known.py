"""Drivers stay known, removed nodes do not, and registrations name their controllers."""

from __future__ import annotations

import pytest

from watcher.known import Differing, concerns, merged
from workers.spec import Spec


def test_absent_driver_stays_known_but_an_absent_node_goes():
    """Keys of a driver without a live worker wait; keys of a removed node would wait forever."""
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


def seen(period_seconds, *records, seconds=200):
    """Return the reports for a registration that alternates between these records."""
    differing, told = Differing(), []
    for now in range(seconds):
        record = records[now // period_seconds % len(records)]
        told += [(now, place) for place in differing.see({"d": record, "e": {"x": 1}}, float(now))]
    return told


@pytest.mark.parametrize("field", ["controller_capabilities", "plugin_capabilities", "version"])
def test_two_drivers_with_one_name_are_told_once_after_a_minute(field):
    """COR2-11: each of two workers overwrites the registration every few seconds."""
    told = seen(5, {field: ["a"]}, {field: ["a", "b"]})
    assert [place for _, place in told] == ["d"]
    assert 60 <= told[0][0] <= 80


@pytest.mark.parametrize(
    ("period", "records", "seconds"),
    [
        pytest.param(5, [{"a": 1}], 200, id="one record"),
        pytest.param(5, [{"a": 1}, {"a": 2}], 50, id="a short roll-out"),
        pytest.param(60, [{"a": 1}, {"a": 2}], 400, id="changes of now and then"),
        pytest.param(5, [{"a": number} for number in range(90)], 400, id="always another one"),
    ],
)
def test_what_changes_for_other_reasons_is_not_told(period, records, seconds):
    assert seen(period, *records, seconds=seconds) == []
