"""The tests of this folder have a control plane of their own, because they kill its API server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.controlplane import ControlPlane

# It needs the Go programs, which csi-fleet does not build: PEER is the folder with them.
collect_ignore = [] if os.environ.get("PEER") else ["test_peers.py"]


@pytest.fixture(scope="session")
def own_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("chaosplane")) as plane:
        yield plane
