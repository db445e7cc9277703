"""One node that runs csi-fleet's manifests as pods, shared by the whole suite."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node.cluster import NodeCluster
from tests.support.node.requirements import lacking
from tests.support.node.scene import NodeScene
from tests.support.node.workloads import install, sidecar, wait_available

# These tests need the Go sidecars, which csi-fleet does not build: PEER is the folder with their
# programs. `release` waits until a Go sidecar holds the Lease again.
collect_ignore = (
    []
    if Path(os.environ.get("PEER", ""), "csi-attacher").is_file()
    else ["test_central_adoption.py", "test_adoption_from_release.py"]
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle the tests, but run adoptions first and in order: they need an empty cluster.

    Tests marked `last` run at the end of their file.
    """
    files = {path: number for number, path in enumerate(dict.fromkeys(one.path for one in items))}

    def place(item: pytest.Item) -> tuple[bool, int, int]:
        is_adoption = "adoption" in item.path.name
        line = item.reportinfo()[1] or 0
        in_file = line if is_adoption else item.get_closest_marker("last") is not None
        return not is_adoption, files[item.path], in_file

    items.sort(key=place)


@pytest.fixture(scope="session")
def node() -> Iterator[NodeCluster]:
    """A Ready node without csi-fleet. test_adoption.py runs first and removes what it installs."""
    if reason := lacking():
        if os.environ.get("CI"):
            pytest.fail(f"CI runs the node suite: {reason}")
        pytest.skip(f"no node here: {reason}")
    with NodeCluster() as made:
        yield made


@pytest.fixture(scope="session")
def cluster(node: NodeCluster) -> NodeCluster:
    """The node with every pod of `k8s/overlays/prod-sidecar` available."""
    objects = sidecar()
    install(node.api, objects, node.directory / "secrets")
    wait_available(node.api, objects)
    return node


@pytest.fixture
def scene(cluster: NodeCluster) -> Iterator[NodeScene]:
    """A scene with a namespace for one test."""
    with NodeScene(cluster) as one:
        yield one
