"""Every password and certificate changes during work, in central mode as shipped.

Real processes run with the manifests' accounts, users and mounts; containers that exit are
restarted as kubelet does it. Nothing fails: each claim is Bound with one volume and without an
error event.
"""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import requests

from tests.support.fleet import Scene
from tests.support.overlay_world import DRIVER_NAME, World, make_driver_certificates
from tests.support.waiting import wait_until

EVERY_SECONDS = 0.2
# Everything that a client of Redis logs in with or verifies its server with; the signing key stays.
OF_REDIS = ("watcher", "worker", "beat", "flower", "ca.crt", "ca.key", "tls.crt", "tls.key")


@pytest.fixture
def world(redis_binary, tmp_path):
    world = World("prod-central", redis_binary, tmp_path)
    try:
        world.start()
        yield world
    finally:
        world.close()


class Load:
    """Creates one claim after another until it is closed."""

    def __init__(self, world):
        self.world = world
        self.scene = Scene(world.api)
        self.storage_class = self.scene.storage_class(DRIVER_NAME, "soon")
        self.names = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _run(self):
        while not self._over.wait(EVERY_SECONDS):
            name = f"load-{len(self.names)}"
            self.scene.claim(name, self.storage_class)
            self.names.append(name)

    def goes_on(self, what):
        """Wait until ten new claims are bound; return the names of the claims made before."""
        before = list(self.names)
        wait_until(lambda: len(self.names) >= len(before) + 10, 30, "ten claims are made")
        wanted = self.names[len(before) : len(before) + 10]

        def are_bound():
            self.world.kubelet.restart_ended()
            self.scene.wait_bound(*wanted, timeout_seconds=1)
            return True

        wait_until(are_bound, 120, f"claims are bound after {what}")
        return before


def change_flower_login(world):
    """Flower exits by itself, is restarted, and accepts only the new login."""
    flower, address = world.flower, f"http://127.0.0.1:{world.flower.port}/api/workers"
    old = world.kubelet.file("Secret", "flower-login", "login").decode().strip()
    (world.redis.secrets / "flower-login").write_text("admin:changed")
    world.kubelet.apply_secrets()
    wait_until(lambda: not flower.process.is_running(), 60, "Flower ends by itself")
    world.kubelet.restart_ended()
    wait_until(lambda: flower.probe("readinessProbe"), 60, "Flower answers again")
    assert requests.get(address, auth=tuple(old.split(":")), timeout=20).status_code == 401
    assert requests.get(address, auth=("admin", "changed"), timeout=20).status_code == 200


def change_driver_certificates(world):
    """Replace the authority of both sides; the driver reads its certificate only when it starts."""
    driver = world.drivers["shared"]
    host = driver.tls.server_name
    make_driver_certificates(world.folder / "driver-tls", host)
    driver.stop()
    driver.start()


def change_redis(world):
    """Replace all passwords and the authority at once."""
    for name in OF_REDIS:
        (world.redis.secrets / name).unlink()
    world.kubelet.apply_secrets()
    world.redis.stop()
    world.redis.serve()


@pytest.mark.timeout(600)
def test_nothing_fails_while_everything_is_rotated(world):
    driver = world.drivers["shared"]
    with Load(world) as load:
        load.goes_on("the start")
        change_driver_certificates(world)
        load.goes_on("new certificates of the driver")
        change_flower_login(world)
        undisturbed = load.goes_on("a new login of Flower")
        change_redis(world)
        load.goes_on("new passwords and a new authority of Redis")
    claims = load.scene.wait_bound(*load.names)
    uid_of = {name: f"pvc-{claim['metadata']['uid']}" for name, claim in claims.items()}
    calls = Counter(one.request["name"] for one in driver.calls("CreateVolume"))
    assert len(driver.volumes()) == len(load.names)
    assert driver.concurrent_calls() == []
    # Without Redis a worker cannot record the driver's answer, so it repeats the call with the same
    # name.
    assert {calls[uid_of[name]] for name in undisturbed} == {1}
    told = world.api.items(f"/api/v1/namespaces/{load.scene.namespace}/events")
    assert [one["message"] for one in told if one["reason"] == "ProvisioningFailed"] == []
    wait_until(
        lambda: (
            world.kubelet.restart_ended()
            or all(p.probe("livenessProbe") for p in world.kubelet.pods)
        ),
        60,
        "all containers live",
    )
    restarted = {pod.name.rpartition("-")[0] for pod in world.kubelet.pods if pod.restarts}
    assert restarted <= {"flower", "beat"}, "watchers and workers take what is new as they run"
    # The files change first: until Redis restarts, it refuses clients that use the new password.
    assert [one for one in world.redis.denials() if ": auth " not in one] == []
