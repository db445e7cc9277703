"""A user's mistake causes one clear line and the Go sidecar's exit code, never a traceback."""

from __future__ import annotations

import re

import pytest
import redis
import yaml

from csi_client import messages as csi
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.processes import free_port
from tests.support.waiting import wait_until
from workers.queue.names import NAMES


@pytest.fixture
def driver():
    with DirectoryDriver() as driver:
        yield driver


@pytest.fixture
def run(tmp_path, kubeconfig):
    """Return a function that starts `csi-fleet run`. Everything is stopped afterwards."""
    started = []

    def run(drivers, *flags, config=kubeconfig, **options):
        fleet = Fleet(tmp_path / f"run{len(started)}", config, drivers, *flags, **options)
        started.append(fleet)
        return fleet.start(wait=False)

    yield run
    for fleet in started:
        fleet.stop()


def ended(fleet, timeout_seconds=45):
    """Return the exit code, once the program has exited by itself."""
    wait_until(lambda: not fleet.process.is_running(), timeout_seconds, "csi-fleet ends")
    return fleet.process.popen.returncode


def complaints(fleet):
    """Return what the program printed, without its informational log lines."""
    lines = fleet.log_text().splitlines()
    return [line for line in lines if line and not re.match(r"I\d{4} ", line)]


def test_t191_probe_unavailable_ends_with_1(run, driver):
    driver.set_rules({"method": "Probe", "code": "UNAVAILABLE", "message": "storage is down"})
    fleet = run([driver])
    assert ended(fleet) == 1
    (line,) = complaints(fleet)
    assert "CSI driver probe failed: rpc error: code = Unavailable desc = storage is down" in line


def test_t190_probe_not_ready_is_waited_for(run, driver):
    """P-004: the program repeats Probe until the driver is ready."""
    driver.set_rules(
        {"method": "Probe", "answer": {"ready": False}, "times": 2},
        {"method": "Probe", "hang": True, "times": 1},
    )
    fleet = run([driver], "--timeout=1s")
    fleet.wait_ready()
    assert len(driver.calls("Probe")) >= 4
    assert "Traceback" not in fleet.log_text()


def test_t192_an_empty_driver_name_ends_with_255(run, driver):
    driver.answer_with("GetPluginInfo", csi.GetPluginInfoResponse())
    fleet = run([driver])
    assert ended(fleet) == 255
    (line,) = complaints(fleet)
    assert "Error getting CSI driver name: driver name is empty" in line


def test_t192_an_error_of_get_plugin_info_ends_with_255(run, driver):
    driver.set_rules({"method": "GetPluginInfo", "code": "INTERNAL", "message": "no name today"})
    fleet = run([driver])
    assert ended(fleet) == 255
    (line,) = complaints(fleet)
    assert "rpc error: code = Internal desc = no name today" in line


def test_two_sockets_of_one_driver_are_refused(run, driver, tmp_path):
    twin = tmp_path / "twin"
    twin.symlink_to(driver.socket)
    fleet = run([driver, str(twin)])
    assert ended(fleet) == 2
    (line,) = set(complaints(fleet))  # each of the two worker processes may log it
    assert f"two sockets belong to driver {driver.name}" in line


def test_a_missing_socket_is_named_and_waited_for(run, driver):
    """P-002: the log says `Still connecting`, and the driver may start later."""
    driver.stop()
    fleet = run([driver])
    wait_until(lambda: "Still connecting" in fleet.log_text(), 30, "the wait is told")
    driver.start()
    fleet.wait_ready()
    assert str(driver.socket) in fleet.log_text()
    assert "Traceback" not in fleet.log_text()


@pytest.mark.parametrize(
    ("flag", "code", "text"),
    [
        ("--no-such-flag", 2, "no-such-flag"),
        ("--timeout=soon", 2, "timeout"),
        ("--worker-threads=0", 2, "worker-threads"),
        ("--volume-name-uuid-length=33", 2, "volume-name-uuid-length"),
    ],
)
def test_a_bad_flag_is_one_line(run, flag, code, text):
    fleet = run(["/nowhere"], flag)
    assert ended(fleet) == code
    assert "Traceback" not in fleet.log_text()
    assert text in fleet.log_text().splitlines()[0]


def test_an_unreachable_api_server_is_told_and_waited_for(run, driver, tmp_path, kubeconfig):
    """The log repeats one line with the address until the server is reachable."""
    config = yaml.safe_load(kubeconfig.read_text())
    port = free_port()
    for cluster in config["clusters"]:
        cluster["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    fleet = run([driver], config=path)
    wait_until(lambda: str(port) in fleet.log_text(), 40, "the address is named")
    assert "Traceback" not in fleet.log_text()
    assert all(len(line) < 1000 for line in fleet.log_text().splitlines())


def test_an_unreadable_kubeconfig_is_one_line(run, driver, tmp_path):
    fleet = run([driver], config=tmp_path / "nothing")
    assert ended(fleet) != 0
    assert "Traceback" not in fleet.log_text()
    assert str(tmp_path / "nothing") in fleet.log_text()


def test_an_unreachable_redis_is_told_and_waited_for(run, driver):
    port = free_port()
    fleet = run([driver], redis_url=f"redis://:hidden-word@127.0.0.1:{port}/0")
    wait_until(lambda: "waiting for Redis" in fleet.log_text(), 40, "the wait is told")
    assert fleet.process.is_running()
    text = fleet.log_text()
    assert str(port) in text
    assert "Traceback" not in text
    assert "hidden-word" not in text


def test_t193_a_lost_socket_parks_the_driver_and_returns(run, driver, scene):
    """Unlike csi-provisioner, the program does not exit: claims wait (docs/differences.md)."""
    fleet = run([driver])
    fleet.wait_ready()
    driver.kill()
    scene.claim("data", scene.storage_class(driver.name))
    wait_until(lambda: scene.claims()["data"]["metadata"].get("annotations"), 10, "annotated")
    assert fleet.process.is_running()
    driver.start()
    scene.wait_bound("data", timeout_seconds=60)
    wait_until(lambda: "reconnected to the driver" in fleet.log_text(), 20, "told")
    assert "Traceback" not in fleet.log_text()


def test_c141_one_lost_driver_of_two_parks_its_own_claims_only(run, driver, scene):
    """S-020: there is no failed attempt, back-off or event; the other driver's claims continue."""
    with DirectoryDriver() as other:
        fleet = run([driver, other])
        fleet.wait_ready()
        driver.kill()
        wait_until(
            lambda: "lost the connection to the driver" in fleet.log_text(), 20, "the loss is told"
        )
        scene.claim("waits", scene.storage_class(driver.name))
        scene.claim("goes-on", scene.storage_class(other.name))
        scene.wait_bound("goes-on")
        with redis.Redis.from_url(fleet.redis_url) as client:
            assert client.hgetall(NAMES["fails"].full) == {}
        assert "ProvisioningFailed" not in scene.reasons("waits")
        driver.start()
        scene.wait_bound("waits")
        assert "ProvisioningFailed" not in scene.reasons("waits")
