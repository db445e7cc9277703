"""Fixtures of all suites. A service fixture starts what it needs on first use and stops it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support import helm
from tests.support.controlplane import ControlPlane
from tests.support.kube_api import KubeApi

pytest_plugins = ["tests.support.redis_fixtures"]

# A busy machine says nothing about a test: no example is late, none is generated too slowly.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, kube-apiserver and kube-controller-manager, shared by the whole run.

    Tests share it: own namespaces, storage classes and driver names, and clean up.
    """
    with ControlPlane(tmp_path_factory.mktemp("controlplane")) as plane:
        yield plane


@pytest.fixture
def kube_api(control_plane: ControlPlane) -> Iterator[KubeApi]:
    """The administrator's raw JSON API of `control_plane`, apart from the code under test."""
    with control_plane.api() as api:
        yield api


@pytest.fixture(scope="session")
def library() -> Any:
    """Helm as a library; in CI it must be there."""
    try:
        return helm.helm()
    except helm.NoHelmError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test the marker of its folder, so that no file can forget it."""
    for item in items:
        folder = Path(item.path).relative_to(Path(__file__).parent).parts[0]
        if folder in {"integration", "e2e", "node", "monitoring", "chaos", "bench"}:
            item.add_marker(folder)
