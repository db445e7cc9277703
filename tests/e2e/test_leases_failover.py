"""Redis fails over, or restarts empty, while Leases are held (COR-6)."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet, leader_flags
from tests.support.processes import start_process
from tests.support.redis_sentinel import ReplicatedRedis
from tests.support.waiting import wait_until
from workers.queue.seal import new_key

CLAIMS = 12


@pytest.fixture
def driver():
    with DirectoryDriver() as driver:
        yield driver


@pytest.fixture
def fleets(tmp_path, kubeconfig, scene, driver, redis_binary):
    """Two programs of one installation that use a Redis with sentinels."""
    key = {"CSI_FLEET_RECORDS_KEY": new_key()}
    with ReplicatedRedis(redis_binary, tmp_path / "redis") as replicated:

        def fleet(name: str, *flags: str) -> Fleet:
            times = leader_flags(scene.namespace, 15, 10, 5)
            return Fleet(
                tmp_path / name, kubeconfig, [driver], *times, "--workers=1", *flags,
                redis_url=replicated.url, env=key,
            )  # fmt: skip

        yield replicated, fleet("one", "--timeout=3s"), fleet("two", "--timeout=60s")


@pytest.mark.parametrize("how", ["lagging", "empty"])
def test_no_lease_is_left_in_a_fail_over(how, driver, scene, fleets):
    """Programs of one installation still know each other, and each claim gets one volume.

    None of them takes another for a stranger, nor a stranger for one of them.
    """
    replicated, one, two = fleets
    driver.set_rules({"method": "CreateVolume", "delay_seconds": [0.2, 1.5]})
    storage_class = scene.storage_class(driver.name)
    with one, two:
        for number in range(CLAIMS):
            scene.claim(f"c{number}", storage_class)
            if number == CLAIMS // 2:
                wait_until(driver.volumes, 60, "the first volume")
                if how == "lagging":
                    replicated.cut_replicas()
        with replicated.client(replicated.master()) as client:
            name = client.get("csifleet:installation")
        before = replicated.kill_master()
        if how == "empty":  # it is back before a sentinel notices; its replica follows it
            folder = replicated.directory / f"redis-{before.port}"
            command = [replicated.binary, str(folder / "redis.conf")]
            before.process = start_process("redis", command, log=folder / "log")
        else:
            replicated.wait_promoted(before)
        scene.wait_bound(timeout_seconds=180)
        with replicated.client(replicated.master()) as client:
            # All claims may have been bound before the loss, so no process may have noticed it yet.
            installation = partial(client.get, "csifleet:installation")
            wait_until(installation, 60, "its name is put back")
            assert installation() == name
        assert "another program holds the Lease" not in one.log_text() + two.log_text()
    assert len(driver.volumes()) == CLAIMS
    assert driver.concurrent_calls() == []
