"""One node with csi-fleet's manifests as pods, shared by the whole suite."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.node.cluster import NodeCluster
from tests.support.node.requirements import lacking
from tests.support.node.scene import NodeScene
from tests.support.node.workloads import install, sidecar, wait_available


@pytest.fixture(scope="session")
def cluster() -> Iterator[NodeCluster]:
    """The node is Ready and every pod of `k8s/overlays/prod-sidecar` available."""
    if reason := lacking():
        if os.environ.get("CI"):
            pytest.fail(f"CI runs the node suite: {reason}")
        pytest.skip(f"no node here: {reason}")
    with NodeCluster() as made:
        objects = sidecar()
        install(made.api, objects, made.directory / "secrets")
        wait_available(made.api, objects)
        yield made


@pytest.fixture
def scene(cluster: NodeCluster) -> Iterator[NodeScene]:
    """A namespace of the test's own."""
    with NodeScene(cluster) as one:
        yield one
