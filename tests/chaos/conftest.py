"""The tests of this folder have a control plane of their own, because they kill its API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.controlplane import ControlPlane


@pytest.fixture(scope="session")
def own_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("chaosplane")) as plane:
        yield plane
