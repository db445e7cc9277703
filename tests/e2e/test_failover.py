"""Redis fails over or loses its data during work: each claim gets one volume, and pauses stay."""

from __future__ import annotations

import pytest
import redis

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.redis_sentinel import ReplicatedRedis
from tests.support.tool import Tool
from tests.support.waiting import wait_until

CLAIMS = 30


@pytest.fixture
def driver():
    """A driver for one test, because no other program may serve it."""
    with DirectoryDriver() as driver:
        yield driver


@pytest.mark.parametrize("lags", [False, True], ids=["in step", "lagging"])
def test_the_master_is_killed_while_claims_are_at_work(
    tmp_path, kubeconfig, driver, scene, redis_binary, lags
):
    """The sentinels promote a replica.

    In the second case the replica is missing the latest writes.
    """
    driver.set_rules({"method": "CreateVolume", "delay_seconds": [0.2, 1.5]})
    names = [f"c{number}" for number in range(CLAIMS)]
    with ReplicatedRedis(redis_binary, tmp_path / "redis") as replicated:
        flags = ("--workers=2", "--worker-threads=6")
        with Fleet(tmp_path, kubeconfig, [driver], *flags, redis_url=replicated.url):
            storage_class = scene.storage_class(driver.name)
            for name in names[: CLAIMS // 2]:
                scene.claim(name, storage_class)
            wait_until(driver.volumes, 30, "the first volume")
            if lags:
                replicated.cut_replicas()
            for name in names[CLAIMS // 2 :]:
                scene.claim(name, storage_class)
            before = replicated.kill_master()
            replicated.wait_promoted(before)
            scene.wait_bound(*names, timeout_seconds=180)
            assert len(driver.volumes()) == CLAIMS
            assert driver.concurrent_calls() == []


def test_a_pause_holds_over_a_wipe_of_redis(tmp_path, kubeconfig, driver, scene, own_redis):
    """OPS-1: an operator works at the array while the node of Redis is drained."""
    with (
        DirectoryDriver() as other,
        Fleet(tmp_path, kubeconfig, [driver, other], redis_url=own_redis.url) as fleet,
        redis.Redis.from_url(own_redis.url) as client,
    ):
        tool = Tool(kubeconfig, fleet.redis_url)
        said = tool.ok("pause", f"--driver={driver.name}", "--reason=firmware")
        assert "WARNING" not in said
        client.flushall()
        storage_class = scene.storage_class(driver.name)
        scene.claim("waits", storage_class)
        scene.claim("goes-on", scene.storage_class(other.name))
        scene.wait_bound("goes-on", timeout_seconds=60)
        tool.wait_cause("pvc", f"{scene.namespace}/waits", "paused")
        assert driver.calls("CreateVolume") == []
        assert "paused: firmware" in tool.run("status").stdout
        assert "WARNING" not in tool.ok("resume", f"--driver={driver.name}")
        scene.wait_bound("waits", timeout_seconds=60)
        client.flushall()
        scene.claim("after", storage_class)
        scene.wait_bound("after", timeout_seconds=60)
