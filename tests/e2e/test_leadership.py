"""The Lease hands work over from csi-provisioner and back (M-020, F-020)."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet, leader_flags
from tests.support.waiting import wait_until
from workers.engine.leasename import lease_name


def test_m020_work_waits_for_a_foreign_holder_and_the_lease_is_given_back(
    tmp_path, kubeconfig, scene, redis_binary
):
    """F-020: the driver gets no call while a csi-provisioner might still be working."""
    with DirectoryDriver() as driver:
        name = lease_name(driver.name)
        path = f"/apis/coordination.k8s.io/v1/namespaces/{scene.namespace}/leases/{name}"
        scene.api.create(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "namespace": scene.namespace},
                "spec": {
                    "holderIdentity": "go-provisioner",
                    "leaseDurationSeconds": 600,
                    "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                },
            }
        )
        scene.claim("data", scene.storage_class(driver.name))
        with Fleet(
            tmp_path / "fleet",
            kubeconfig,
            [driver],
            *leader_flags(scene.namespace),
        ) as fleet:
            wait_until(
                lambda: 'holder="go-provisioner"' in fleet.log_text(), 20, "the wait is told"
            )
            assert driver.calls("CreateVolume") == []
            scene.api.patch(path, {"spec": {"holderIdentity": ""}})
            scene.wait_bound("data", timeout_seconds=20)
            spec = scene.api.get(path)["spec"]
            assert "_" in spec["holderIdentity"]
            assert spec["leaseDurationSeconds"] == 4
            # A worker that stops earlier cannot know that no other worker relies on the Lease.
            wait_until(lambda: held_seconds(scene, path) > 3, 20, "the others had time to speak")
            fleet.stop()
        assert not scene.api.get(path)["spec"].get("holderIdentity")


def held_seconds(scene, path):
    """Return the seconds from acquiring the Lease to its last renewal."""
    spec = scene.api.get(path)["spec"]
    taken, renewed = (datetime.fromisoformat(spec[name]) for name in ("acquireTime", "renewTime"))
    return (renewed - taken).total_seconds()


def all_of_it(fleet):
    """Kill and start the whole program, like a container that restarts and keeps its files."""
    fleet.process.kill()
    fleet.start()


def redis_and_worker(fleet):
    """Kill Redis and the worker as if out of memory; the supervisor survives and restarts both."""
    for pid in [*fleet.parts("redis-server"), *fleet.workers()]:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("die", [all_of_it, redis_and_worker], ids=lambda one: one.__name__)
def test_who_comes_after_a_death_need_not_wait_for_its_own_lease(die, tmp_path, kubeconfig, scene):
    """The next program takes over at once, although the Lease lasts ten minutes.

    It knows the holder by the name in the folder's Redis.
    """
    with DirectoryDriver() as driver:
        storage_class = scene.storage_class(driver.name)
        with Fleet(
            tmp_path / "fleet",
            kubeconfig,
            [driver],
            *leader_flags(scene.namespace, 600, 500, 5),
            "--workers=1",
        ) as fleet:
            scene.claim("before", storage_class)
            scene.wait_bound("before")
            die(fleet)
            scene.claim("after", storage_class)
            scene.wait_bound("after")
            assert "another program holds the Lease" not in fleet.log_text()
