"""How a driver's registration tells the watcher where its capacity objects are."""

from __future__ import annotations

import pytest

from tests.support.fake_cluster import World
from workers.config.settings import CapacitySettings, NodeSettings, Settings
from workers.controllers.capacity.controller import CONTROLLER

ABLE = frozenset({"CREATE_DELETE_VOLUME", "GET_CAPACITY"})


def record(*, enabled=True, controller=ABLE, node=NodeSettings()):  # noqa: B008 - frozen value
    settings = Settings(capacity=CapacitySettings(enabled=enabled, namespace="storage"), node=node)
    return CONTROLLER.record(World(settings, controller=controller).driver)["capacity"]


@pytest.mark.parametrize(
    ("node", "label"),
    [
        pytest.param(NodeSettings(), "external-provisioner", id="one for the cluster"),
        pytest.param(
            NodeSettings(enabled=True, node_name="n1"),
            "external-provisioner-n1",
            id="CAP-004 per node",
        ),
    ],
)
def test_the_record_names_the_label_that_the_worker_writes(node, label):
    assert record(node=node) == {"namespace": "storage", "managed_by": label}


@pytest.mark.parametrize("options", [{"enabled": False}, {"controller": frozenset()}])
def test_cap012_without_capacity_nothing_is_watched(options):
    assert record(**options) is None
