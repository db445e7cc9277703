"""Volumes grow and change their class on a real API server, even if calls fail (issue 19).

One worker process runs provisioner and resizer; the test acts as kubelet.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.kube_objects import own_conditions
from tests.support.tool import Tool
from tests.support.waiting import wait_until

GIB = 2**30
CAPABILITIES = "CONTROLLER_SERVICE,CREATE_DELETE_VOLUME,EXPAND_VOLUME,MODIFY_VOLUME"
NOTE = "volume.alpha.kubernetes.io/pre-resize-capacity"
EXPAND, MODIFY = "ControllerExpandVolume", "ControllerModifyVolume"


@pytest.fixture(scope="module")
def driver():
    arguments = ["--capabilities", CAPABILITIES, "--node-expansion-required"]
    with DirectoryDriver(arguments=arguments) as driver:
        yield driver


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, kubeconfig, driver):
    directory = tmp_path_factory.mktemp("resizing")
    flags = ("--controllers=provisioner,resizer", "--timeout=3s", "-v=4")
    with Fleet(directory, kubeconfig, [driver], "--workers=2", *flags) as fleet:
        yield fleet


class Claims:
    """The claims of one test: what their specs request and what their volumes have."""

    def __init__(self, scene, driver):
        self.scene, self.driver = scene, driver
        self.storage_class = scene.storage_class(driver.name, allowVolumeExpansion=True)
        self._attributes = []

    def bound(self, *names):
        for name in names:
            self.scene.claim(name, self.storage_class)
        self.scene.wait_bound(*names)

    def attributes_class(self, name, **parameters):
        full = f"{self.scene.name}-{name}"
        body = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttributesClass",
            "metadata": {"name": full},
            "driverName": self.driver.name,
            "parameters": parameters,
        }
        self.scene.api.create(body)
        self._attributes.append(full)
        return full

    def edit(self, name, size=None, **spec):
        if size is not None:
            spec["resources"] = {"requests": {"storage": f"{size}Gi"}}
        self.scene.api.patch(f"{self.scene.claims_path}/{name}", {"spec": spec})

    def status(self, name):
        return self.scene.get(name)["status"]

    def volume(self, name):
        return self.scene.volume_of(self.scene.get(name))

    def handle(self, name):
        return self.volume(name)["spec"]["csi"]["volumeHandle"]

    def part(self, name):
        return self.status(name).get("allocatedResourceStatuses", {}).get("storage", "")

    def wait_part(self, name, part):
        wait_until(lambda: self.part(name) == part, 60, f"{name} is {part}")

    def finish_node_part(self, name):
        """Finish the expansion on the node, as kubelet does."""
        self.wait_part(name, "NodeResizePending")
        size = self.volume(name)["spec"]["capacity"]["storage"]
        status = {
            "capacity": {"storage": size},
            "allocatedResourceStatuses": None,
            "conditions": None,
        }
        path = f"{self.scene.claims_path}/{name}/status"
        self.scene.api.patch(path, {"status": status})

    def wait_size(self, name, size):
        """Wait until driver, volume and claim agree on the size."""

        def agree():
            status, volume = self.status(name), self.volume(name)
            known = (status["capacity"]["storage"], volume["spec"]["capacity"]["storage"])
            assert known == (f"{size}Gi", f"{size}Gi"), (known, status)
            assert NOTE not in (volume["metadata"].get("annotations") or {})
            assert not own_conditions(status), status
            return True

        wait_until(agree, 60, f"{name} has {size} Gi")
        assert self.driver.volumes()[self.handle(name)]["capacity_bytes"] == size * GIB

    def wait_class(self, name, full):
        def applied():
            status = self.status(name)
            assert status.get("currentVolumeAttributesClassName") == full, status
            assert "modifyVolumeStatus" not in status, status
            return True

        wait_until(applied, 60, f"{name} has class {full}")
        assert self.volume(name)["spec"]["volumeAttributesClassName"] == full

    def sizes(self, name):
        """Return the sizes in GiB that the driver was asked for."""
        handle = self.handle(name)
        return [
            int(call.request["capacity_range"]["required_bytes"]) // GIB
            for call in self.driver.calls(EXPAND)
            if call.request["volume_id"] == handle
        ]

    def clean_up(self):
        for full in self._attributes:
            self.scene.api.delete(f"/apis/storage.k8s.io/v1/volumeattributesclasses/{full}")


@pytest.fixture
def claims(fleet, scene, driver):
    found = Claims(scene, driver)
    yield found
    driver.set_rules()
    found.clean_up()


def test_volumes_grow_once_and_the_node_part_is_handed_over(claims, driver):
    """TR-020, TR-040, R-070: twenty volumes grow at the same time, with one call each per size."""
    names = [f"data-{number}" for number in range(20)]
    claims.bound(*names)
    for size in (2, 3):
        for name in names:
            claims.edit(name, size)
        for name in names:
            claims.finish_node_part(name)
        for name in names:
            claims.wait_size(name, size)
    assert [claims.sizes(name) for name in names] == [[2, 3]] * len(names)
    mine = {claims.handle(name) for name in names}
    assert not [one for one in driver.concurrent_calls() if one.request["volume_id"] in mine]
    reasons = claims.scene.reasons("data-0")
    assert {"Resizing", "FileSystemResizeRequired"} <= reasons
    assert "VolumeResizeFailed" not in reasons


def test_a_size_that_fails_can_be_taken_back(claims, driver):
    """TR-050, TR-056: a lower size replaces the infeasible one at once and without a trace."""
    driver.set_rules({"method": EXPAND, "code": "OUT_OF_RANGE", "message": "at most 5", "times": 1})
    claims.bound("data")
    claims.edit("data", 9)
    claims.wait_part("data", "ControllerResizeInfeasible")
    claims.scene.wait_event("data", "at most 5")
    claims.edit("data", 4)
    claims.finish_node_part("data")
    claims.wait_size("data", 4)
    assert claims.sizes("data") == [9, 4]


def test_a_size_that_may_be_at_work_is_asked_for_first(claims, driver):
    """TR-053, I-2: the driver grew the volume, its answer is lost, the user lowers the size.

    The first size is requested again before another one.
    """
    driver.set_rules({"method": EXPAND, "code": "UNAVAILABLE", "after_work": True, "times": 1})
    claims.bound("data")
    claims.edit("data", 5)
    claims.scene.wait_event("data", "code = Unavailable")
    claims.edit("data", 3)
    claims.finish_node_part("data")
    claims.wait_size("data", 5)
    assert set(claims.sizes("data")) == {5}


def test_explain_names_what_a_claim_waits_for(claims, driver, fleet, kubeconfig):
    """`explain` names the first cause among those of size and class."""
    tool = Tool(kubeconfig, fleet.redis_url)
    driver.set_rules({"method": EXPAND, "code": "OUT_OF_RANGE", "message": "at most 5", "times": 1})
    claims.bound("data")
    name = f"{claims.scene.namespace}/data"
    claims.edit("data", 9)
    assert "at most 5" in tool.wait_cause("pvc", name, "size-infeasible", 60)
    claims.edit("data", 4)
    tool.wait_cause("pvc", name, "waits-for-node", 60)
    claims.finish_node_part("data")
    claims.wait_size("data", 4)
    claims.edit("data", volumeAttributesClassName="nobody-has-it")
    assert "nobody-has-it" in tool.wait_cause("pvc", name, "class-missing", 60)


def test_a_paused_driver_starts_nothing(claims, fleet, kubeconfig, driver):
    """While the driver is paused, the claim waits without a failure, then continues."""
    tool = Tool(kubeconfig, fleet.redis_url)
    claims.bound("data")
    tool.ok("pause", f"--driver={driver.name}", "--reason=upgrade")
    claims.edit("data", 2)
    name = f"{claims.scene.namespace}/data"
    assert "upgrade" in tool.wait_cause("pvc", name, "paused", 60)
    assert claims.sizes("data") == []
    tool.ok("resume", f"--driver={driver.name}")
    claims.finish_node_part("data")
    claims.wait_size("data", 2)


def test_a_driver_that_is_away_is_given_a_rest(claims, driver):
    """The driver's queues are paused: no failure is counted and no event is written.

    The claim continues once the driver is back.
    """
    claims.bound("data")
    driver.kill()
    try:
        claims.edit("data", 2)
    finally:
        driver.start()
    claims.finish_node_part("data")
    claims.wait_size("data", 2)
    assert "VolumeResizeFailed" not in claims.scene.reasons("data")


def test_another_class_is_applied_also_when_it_comes_late(claims, driver):
    """TR-121, TR-124, DR-018: the class may be created after the claim names it."""
    claims.bound("data")
    claims.edit("data", volumeAttributesClassName=f"{claims.scene.name}-gold")
    claims.scene.wait_event("data", "does not exist")
    gold = claims.attributes_class("gold", tier="gold")
    claims.wait_class("data", gold)
    assert driver.volumes()[claims.handle("data")]["parameters"]["tier"] == "gold"


def test_an_infeasible_class_can_be_left(claims, driver):
    """TR-126, TR-132: another class replaces an infeasible one."""
    driver.set_rules({"method": MODIFY, "code": "INVALID_ARGUMENT", "message": "no", "times": 1})
    gold, silver = (claims.attributes_class(name, tier=name) for name in ("gold", "silver"))
    claims.bound("data")
    claims.edit("data", volumeAttributesClassName=gold)
    wait_until(
        lambda: claims.status("data").get("modifyVolumeStatus", {}).get("status") == "Infeasible",
        60,
        "the class is infeasible",
    )
    claims.edit("data", volumeAttributesClassName=silver)
    claims.wait_class("data", silver)


def test_size_and_class_in_one_edit(claims, driver):
    """TR-156, MR-001: each claim gets one call for size and one for class.

    There is no conflict and no warning.
    """
    gold = claims.attributes_class("gold", tier="gold")
    names = [f"data-{number}" for number in range(10)]
    claims.bound(*names)
    before = len(driver.calls(MODIFY))
    for name in names:
        claims.edit(name, 2, volumeAttributesClassName=gold)
    for name in names:
        claims.finish_node_part(name)
        claims.wait_size(name, 2)
        claims.wait_class(name, gold)
    assert [claims.sizes(name) for name in names] == [[2]] * len(names)
    assert len(driver.calls(MODIFY)) - before == len(names)
    for name in names:
        assert not {"VolumeResizeFailed", "VolumeModifyFailed"} & claims.scene.reasons(name)


def test_tr158_a_worker_killed_between_call_and_status(claims, driver, fleet):
    """MR-033: the storage has grown but no object says so.

    The worker finishes this size before the next, and the volume never shrinks.
    """
    driver.set_rules({"method": EXPAND, "hang": True, "after_work": True, "times": 1})
    claims.bound("data")
    claims.edit("data", 3)
    wait_until(lambda: claims.sizes("data") == [3], 30, "the call is under way")
    wait_until(
        lambda: driver.volumes()[claims.handle("data")]["capacity_bytes"] == 3 * GIB,
        30,
        "the volume has grown",
    )
    claims.edit("data", 7)
    for pid in fleet.workers():
        os.kill(pid, signal.SIGKILL)
    claims.finish_node_part("data")
    wait_until(lambda: claims.sizes("data")[-1] == 7, 60, "the user's size follows")
    assert claims.sizes("data") == [3, 3, 7]
    claims.finish_node_part("data")
    claims.wait_size("data", 7)
