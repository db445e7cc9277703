"""Runs each overlay as shipped: its pods' arguments, accounts, mounts, Redis users and probes.

A control plane with RBAC accepts all objects of the overlay. Watcher, workers, beat and Flower run
as the manifests say, with tokens of their accounts and the shipped Redis with TLS and ACL. Claims
are bound and deleted, and neither the API server nor Redis refuses a request.
"""

from __future__ import annotations

import pytest
import requests

from tests.support.fleet import Scene
from tests.support.overlay_world import DRIVER_NAME, NODES, World
from tests.support.shipped import K8S, NAMESPACE, audited
from tests.support.waiting import wait_until


@pytest.fixture
def world(overlay, redis_binary, tmp_path):
    world = World(overlay, redis_binary, tmp_path)
    try:
        world.start()
        yield world
    finally:
        world.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("overlay", sorted(one.name for one in (K8S / "overlays").iterdir()))
def test_overlay_works_as_shipped(world):
    scene = Scene(world.api)
    late = scene.storage_class(DRIVER_NAME, "late", volumeBindingMode="WaitForFirstConsumer")
    soon = scene.storage_class(DRIVER_NAME, "soon")
    for number in range(4):
        scene.claim(f"late-{number}", late)
        scene.select_node(f"late-{number}", NODES[number % 2 if len(world.drivers) > 1 else 0])
    scene.claim("soon", soon)
    scene.wait_bound(timeout_seconds=90)
    assert sum(len(one.volumes()) for one in world.drivers.values()) == 5
    if len(world.drivers) > 1:
        for node in NODES:
            assert len(world.drivers[node].volumes()) >= 2, "each node made its own volumes"
    assert_capacity_is_owned(world, late)
    assert_flower_shows_workers(world)
    assert_everybody_has_a_user_of_its_own(world)
    for name in scene.claims():
        scene.delete(name)
    scene.wait_gone()
    assert [one.volumes() for one in world.drivers.values()] == [{}] * len(world.drivers)
    for account, home in (("watcher", NAMESPACE), (world.shape.account, world.shape.namespace)):
        by_code = audited(world.plane, account, home)
        assert set().union(*by_code.values()), f"{home}/{account} asked for something"
        assert by_code[403] == set()
    assert world.redis.denials() == []
    assert all(pod.process.is_running() for pod in world.kubelet.pods)
    assert "Traceback" not in world.kubelet.log_text()


def assert_capacity_is_owned(world, storage_class):
    if not world.shape.owner:
        return
    path = f"/apis/storage.k8s.io/v1/namespaces/{world.shape.namespace}/csistoragecapacities"

    def published():
        found = world.api.items(path)
        return [one for one in found if one["storageClassName"] == storage_class]

    found = wait_until(lambda: len(published()) >= len(world.drivers) and published(), 60, "sizes")
    owners = {(ref["kind"], ref["name"]) for one in found
              for ref in one["metadata"]["ownerReferences"]}  # fmt: skip
    assert owners == {(world.shape.owner, world.shape.name)}


def assert_flower_shows_workers(world):
    login = world.kubelet.file("Secret", "flower-login", "login").decode().strip()
    url = f"http://127.0.0.1:{world.flower.port}/api/workers"

    def workers():
        answer = requests.get(url, auth=tuple(login.split(":")), params={"refresh": 1}, timeout=20)
        return len(answer.json()) >= 2

    wait_until(workers, 60, "Flower knows both workers")
    assert requests.get(url, timeout=10).status_code == 401


def assert_everybody_has_a_user_of_its_own(world):
    """Each component logs in as its own Redis user.

    Redis listens with TLS only, so each of these connections is encrypted.
    """
    with world.redis.client("tester") as client:

        def users():
            found = {one["user"] for one in client.client_list()}
            # A connection that is just being made has not logged in yet.
            return found if "default" not in found else None

        found = wait_until(users, 20, "nobody is without a user")
    assert {"watcher", "beat", "flower"} <= found
    # A worker in a driver's pod has a user for that driver.
    assert found & {"worker", f"worker.{DRIVER_NAME}"}
