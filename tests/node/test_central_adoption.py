"""An EBS-like driver is adopted in both modes, and released, while claims are created.

PEER=folder pytest tests/node/test_central_adoption.py -s     # ROUNDS=3: three times each

The folder has Go's csi-provisioner, csi-attacher and csi-resizer. Nothing may be lost, no two
calls for a volume may overlap, and only one side may work at any time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median

import pytest
import yaml

from tests.support.fleet import ROOT
from tests.support.node import ebs_like, moving
from tests.support.node.cluster import NodeCluster
from tests.support.node.ebs_like import Sides, Work
from tests.support.node.moving import ACCOUNT, DRIVER, NAMESPACE
from tests.support.waiting import wait_until
from tests.support.walkthrough import kubectl

pytestmark = pytest.mark.timeout(1800)
ROUNDS = int(os.environ.get("ROUNDS", "1"))
VALUES = {
    "mode": "central",
    "controllers": ["provisioner", "attacher", "resizer"],
    "features": ["topology", "attachments", "attributes-classes"],
    "flower": {"enabled": False},
    # `--as=worker` needs this entry. Central workers need no entry of the chart for a driver.
    "drivers": [
        {"name": DRIVER, "mode": "worker", "namespace": NAMESPACE, "serviceAccount": ACCOUNT}
    ],
}


class System:
    """csi-fleet in the cluster, and an operator's commands."""

    def __init__(self, node: NodeCluster, folder: Path) -> None:
        self.node = node
        self._environment = os.environ | {
            "KUBECONFIG": str(node.plane.kubeconfig),
            "KUBECTL": str(kubectl()),
        }
        self._values = folder / "values.yaml"
        self._values.write_text(yaml.safe_dump(VALUES))

    def helm(self, action: str, *words: str) -> str:
        """Run one helm command for the release."""
        return self._run("tests.support.helm", action, "csi-fleet", *words, "-n", "csi-fleet")

    def install(self) -> None:
        """Install the chart and wait until everything is available."""
        chart = (str(ROOT / "k8s/chart"), "-f", str(self._values))
        self.helm("install", *chart, "--create-namespace", "--wait")

    def uninstall(self) -> None:
        """Uninstall the release and delete its namespaces."""
        self.helm("uninstall", "--wait")
        for name in ("csi-fleet", "csi-fleet-records"):
            self.node.api.delete(f"/api/v1/namespaces/{name}")
            wait_until(partial(self._is_gone, name), 120, f"{name} is gone")

    def _is_gone(self, namespace: str) -> bool:
        return self.node.api.find(f"/api/v1/namespaces/{namespace}") is None

    def move(self, command: str, *flags: str) -> float:
        """Run `adopt` or `release` until it ends; return the seconds."""
        since = time.monotonic()
        said = self._run("workers", command, DRIVER, *flags)
        assert f"{DRIVER} is {command.removesuffix('e')}ed" in said
        return time.monotonic() - since

    def _run(self, module: str, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=ROOT,
            env=self._environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def system(node: NodeCluster, tmp_path: Path) -> Iterator[System]:
    """One installation per test.

    Deleting the vendor's namespace would delete what the chart created in it.
    """
    node.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    made = System(node, tmp_path)
    made.install()
    yield made
    made.uninstall()


@pytest.fixture
def driver(node: NodeCluster, system: System) -> Iterator[None]:
    ebs_like.install(node, Path(os.environ["PEER"]))
    yield
    ebs_like.remove(node)


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("flags", [("--as=worker", "--one-replica"), ("--as=central",)])
def test_two_replicas_are_adopted_and_released_while_claims_come(
    node: NodeCluster, system: System, flags: tuple[str, ...]
) -> None:
    since, work, sides = time.time(), Work(node.api), Sides(node.api)
    adopted, released = [], []
    try:
        for _ in range(ROUNDS):
            work.wait_more(5)
            adopted.append(system.move("adopt", *flags))
            work.wait_more(10)
            released.append(system.move("release"))
        work.wait_more(5)
    finally:
        work.stop()
        sides.stop()
    nothing_lost(node, work)
    with closing(moving.journal(node)) as journal:
        calls = [one for one in journal.calls() if one.started_at > since]
    created = [one for one in calls if one.method == "CreateVolume"]
    assert moving.overlapping(created, "name") == []
    about = [one for one in calls if "volume_id" in one.request]
    assert moving.overlapping(about, "volume_id") == []
    # One side works at a time: no process that was replaced worked again.
    assert ebs_like.came_back(created) == []
    assert sides.both == 0
    if "--as=worker" in flags:
        assert sides.order == ["go", "csi-fleet"] * ROUNDS + ["go"]
    waited = sorted(work.waited.values())
    print(
        f"{flags[0]}: {work.made} claims; adopt {_seconds(adopted)}, release {_seconds(released)}; "
        f"claim to Bound: p50 {median(waited):.1f} s, max {waited[-1]:.1f} s; longest gap "
        f"between two creations {ebs_like.longest_gap(created):.1f} s; {len(calls)} calls"
    )


def nothing_lost(node: NodeCluster, work: Work) -> None:
    """The API server and the driver have one volume of the new size for each claim that is kept."""
    kept = work.names("kept")
    assert kept | work.names("deleted") == {f"c{n}" for n in range(work.made)}
    is_done = lambda: set(moving.volumes(node.api).values()) == kept  # noqa: E731
    wait_until(is_done, moving.SECONDS, "volumes of deleted claims are gone")
    volumes = moving.volumes(node.api)
    assert sorted(volumes.values()) == sorted(kept), "one volume for each claim"
    assert node.api.items(ebs_like.ATTACHMENTS) == []
    with closing(moving.journal(node)) as driver:
        stored = sorted(one["name"] for one in driver.volumes().values())
    assert stored == sorted(volumes), "the driver stores what the cluster knows"


def _seconds(times: list[float]) -> str:
    return " ".join(f"{one:.0f}" for one in times) + " s"
