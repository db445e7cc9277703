"""How the watcher's rules read a driver's registration, and the defaults of missing fields."""

from __future__ import annotations

import pytest

from workers.controllers.provisioner.served import Drivers, DriverView


def view(**record):
    return DriverView.from_record({"name": "d", "queue_name": "d", **record})


def test_a_record_that_says_little_is_of_a_plain_csi_driver():
    """L-072: Volumes of a CSI driver have the finalizer unless the registration says otherwise."""
    assert view() == DriverView(
        name="d",
        queue_name="d",
        in_tree_name=None,
        additional_names=(),
        node=None,
        node_segments=None,
        add_finalizer=True,
        has_topology=False,
        has_attach=False,
        can_clone=False,
        has_capacity=False,
    )


def test_a_record_that_says_everything():
    """L-026, L-072, L-078, CL-004: Fields of other controllers are ignored."""
    said = view(
        queue_name="d@n1",
        in_tree_name="kubernetes.io/d",
        additional_names=["old.d"],
        node="n1",
        node_segments={"zone": "z1"},
        add_finalizer=False,
        topology=True,
        capacity=True,
        controller_capabilities=["PUBLISH_UNPUBLISH_VOLUME", "CLONE_VOLUME"],
        attributes_classes=True,
    )
    assert said == DriverView(
        name="d",
        queue_name="d@n1",
        in_tree_name="kubernetes.io/d",
        additional_names=("old.d",),
        node="n1",
        node_segments={"zone": "z1"},
        add_finalizer=False,
        has_topology=True,
        has_attach=True,
        can_clone=True,
        has_capacity=True,
    )


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        pytest.param({}, False, id="neither"),
        pytest.param({"topology": True}, True, id="topology"),
        pytest.param({"capacity": True}, True, id="CAP-020 segments of the cluster"),
        pytest.param({"capacity": True, "node": "n1"}, False, id="capacity of its own node"),
        pytest.param({"topology": True, "node": "n1"}, True, id="topology on each node"),
        pytest.param({"node": "n1"}, False, id="on each node"),
    ],
)
def test_cap020_who_needs_nodes(record, expected):
    assert view(**record).needs_nodes is expected


def test_a_drivers_own_name_is_stronger_than_anothers_alias():
    """L-071: A volume of `b` belongs to driver b, although driver a has the alias `b`."""
    drivers = Drivers.of([view(name="b"), view(name="a", additional_names=["b", "old"])])
    assert drivers.owners == {"a": "a", "b": "b", "old": "a"}
    assert [one.name for one in drivers.views()] == ["a", "b"]
