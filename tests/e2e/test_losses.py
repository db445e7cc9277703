"""A process dies or Redis loses its data during work, and nothing leaks (issue 3)."""

from __future__ import annotations

import os
import signal

import pytest
import redis

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.waiting import wait_until

CLAIMS = 50


@pytest.fixture
def drivers():
    """Two drivers for one test, because no other program may serve them."""
    with DirectoryDriver() as one, DirectoryDriver() as two:
        yield one, two


@pytest.fixture
def driver(drivers):
    return drivers[0]


def test_a_worker_killed_in_create_volume_leaves_one_volume(
    tmp_path, kubeconfig, driver, scene, redis_binary
):
    """G1, G5: another worker repeats the call and binds the claim."""
    flags = ("--timeout=30s", "--lease-ttl=2s")
    before = set(driver.volumes())
    with Fleet(tmp_path, kubeconfig, [driver], *flags) as fleet:
        driver.set_rules({"method": "CreateVolume", "delay_seconds": 12, "times": 1})
        claim = scene.claim("data", scene.storage_class(driver.name))
        name = f"pvc-{claim['metadata']['uid']}"

        def calls():
            return [one for one in driver.calls("CreateVolume") if one.request["name"] == name]

        wait_until(calls, 20, "the driver is called")
        (victim,) = fleet.workers()
        with fleet.extra_worker():
            os.kill(victim, signal.SIGKILL)
            scene.wait_bound("data", timeout_seconds=40)
            wait_until(
                lambda: all(one.ended_at is not None for one in calls()), 20, "all calls end"
            )
        assert len(calls()) == 2
        assert calls()[0].client_waits is False
        assert len(set(driver.volumes()) - before) == 1
        assert driver.concurrent_calls() == []
        assert victim not in fleet.workers()


def test_the_embedded_redis_is_killed_while_claims_are_in_progress(
    tmp_path, kubeconfig, driver, scene
):
    """G7: `csi-fleet run` restarts Redis twice, and every claim is bound with one volume."""
    before = set(driver.volumes())
    with Fleet(tmp_path, kubeconfig, [driver], "--timeout=30s") as fleet:
        driver.set_rules({"method": "CreateVolume", "delay_seconds": [0.2, 1.5]})
        chosen = scene.storage_class(driver.name)
        for number in range(CLAIMS):
            scene.claim(f"data-{number}", chosen)
        for bound in (5, 15):
            wait_until(lambda bound=bound: len(scene.volumes()) >= bound, 60, "some volumes")
            (victim,) = wait_until(lambda: fleet.parts("redis-server"), 60, "Redis is there")
            os.kill(victim, signal.SIGKILL)
        assert len(scene.volumes()) < CLAIMS
        scene.wait_bound(timeout_seconds=90)
        driver.set_rules()
        assert len(set(driver.volumes()) - before) == CLAIMS
        assert driver.concurrent_calls() == []
        assert fleet.process.is_running()
        scene.clean_up()


def test_redis_flushed_while_claims_are_in_progress(
    tmp_path, kubeconfig, drivers, scene, own_redis
):
    """G7: every claim is bound with one volume."""
    before = {driver.name: set(driver.volumes()) for driver in drivers}
    rule = {"method": "CreateVolume", "delay_seconds": [0.2, 1.5]}
    flags = ("--workers=2", "--worker-threads=6")
    with Fleet(tmp_path, kubeconfig, drivers, *flags, redis_url=own_redis.url):
        classes = []
        for driver in drivers:
            driver.set_rules(rule)
            classes.append(scene.storage_class(driver.name))
        for number in range(CLAIMS):
            scene.claim(f"data-{number}", classes[number % 2])
        # At the FLUSHALL some claims are bound, some calls are running, and most claims wait.
        wait_until(lambda: len(scene.volumes()) >= 10, 30, "ten volumes")
        with redis.Redis.from_url(own_redis.url) as client:
            client.flushall()
        assert len(scene.volumes()) < CLAIMS
        scene.wait_bound(timeout_seconds=60)
        for driver in drivers:
            driver.set_rules()
            handles = [
                one["spec"]["csi"]["volumeHandle"]
                for one in scene.volumes()
                if one["spec"]["csi"]["driver"] == driver.name
            ]
            assert sorted(handles) == sorted(set(driver.volumes()) - before[driver.name])
        for name in scene.claims():
            scene.delete(name)
        scene.wait_gone()
        assert {one.name: set(one.volumes()) for one in drivers} == before
