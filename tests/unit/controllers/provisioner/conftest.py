"""Fixtures: a fake cluster with one driver, and a claim with its StorageClass."""

from __future__ import annotations

import pytest

from tests.support.fake_cluster import World


@pytest.fixture
def world():
    return World()


@pytest.fixture
def claim(world):
    """Return the claim default/data of class `fast`, which requests 1 KiB; it is in the cluster."""
    world.add_class()
    return world.add_claim()
