"""Snapshots on a real API server are taken, restored and deleted, even if calls fail.

One worker process has snapshot-controller, snapshotter and provisioner. The group CRDs are not
installed, which also shows that nothing else depends on them.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.kube_api import KubeApiError
from tests.support.waiting import wait_until

ROOT = "/apis/snapshot.storage.k8s.io/v1"
CREATE, DELETE = "CreateSnapshot", "DeleteSnapshot"


@pytest.fixture(scope="module")
def driver():
    with DirectoryDriver() as driver:
        yield driver


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, kubeconfig, driver):
    directory = tmp_path_factory.mktemp("snapshots")
    flags = (
        "--controllers=provisioner,snapshotter,snapshot-controller",
        "--provisioner-timeout=3s",
        "--snapshotter-timeout=3s",
        "-v=4",
    )
    with Fleet(directory, kubeconfig, [driver], "--workers=2", *flags) as fleet:
        yield fleet


class Snapshots:
    """The snapshots of one test: their objects and what the storage holds."""

    def __init__(self, scene, driver):
        self.scene, self.driver, self.api = scene, driver, scene.api
        self.storage_class = scene.storage_class(driver.name)
        self.snapshot_class = f"{scene.name}-snap"
        self.path = f"{ROOT}/namespaces/{scene.namespace}/volumesnapshots"
        self.before = set(driver.snapshots())
        body = {"driver": driver.name, "deletionPolicy": "Delete"}
        self.create("VolumeSnapshotClass", self.snapshot_class, **body)

    def create(self, kind, name, **body):
        version = "snapshot.storage.k8s.io/v1"
        return self.api.create(
            {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **body}
        )

    def bound(self, *names):
        for name in names:
            self.scene.claim(name, self.storage_class)
        self.scene.wait_bound(*names)

    def take(self, name, claim):
        metadata = {"name": name, "namespace": self.scene.namespace}
        source = {"persistentVolumeClaimName": claim}
        spec = {"source": source, "volumeSnapshotClassName": self.snapshot_class}
        self.create("VolumeSnapshot", name, metadata=metadata, spec=spec)

    def get(self, name):
        with suppress(KubeApiError):
            return self.api.get(f"{self.path}/{name}")
        return None

    def contents(self):
        return [
            one
            for one in self.api.items(f"{ROOT}/volumesnapshotcontents")
            if one["spec"]["volumeSnapshotRef"]["namespace"] == self.scene.namespace
        ]

    def content(self, name):
        return next(
            (one for one in self.contents() if one["spec"]["volumeSnapshotRef"]["name"] == name),
            None,
        )

    def wait_ready(self, *names):
        for name in names:
            wait_until(
                lambda n=name: (self.get(n).get("status") or {}).get("readyToUse"),
                60,
                f"snapshot {name} is ready",
            )

    def delete(self, name):
        self.api.delete(f"{self.path}/{name}")

    def wait_gone(self, name):
        wait_until(lambda: self.get(name) is None, 60, f"snapshot {name} is gone")

    def left(self):
        """Return the snapshots that this test has left in the storage."""
        return set(self.driver.snapshots()) - self.before

    def calls(self, method, content):
        uid = content.removeprefix("snapcontent-")
        return [c for c in self.driver.calls(method) if uid in str(c.request)]

    def claim_finalizers(self, name):
        return self.scene.get(name)["metadata"].get("finalizers") or []

    def intents(self):
        found = self.api.items("/api/v1/configmaps", labelSelector="csi-fleet.io/intent")
        return [one["metadata"]["name"] for one in found if "snapshot" in one["metadata"]["name"]]

    def clean_up(self):
        self.api.delete(f"{ROOT}/volumesnapshotclasses/{self.snapshot_class}")


@pytest.fixture
def snapshots(fleet, scene, driver):
    found = Snapshots(scene, driver)
    yield found
    driver.set_rules()
    found.clean_up()


def test_twenty_at_once_are_cut_restored_and_deleted(snapshots, driver):
    """SNT-001, SNT-021, SNT-040, SNT-074: each snapshot costs one call; nothing is left."""
    names = [f"s-{number}" for number in range(20)]
    snapshots.bound("data", "more")
    for number, name in enumerate(names):
        snapshots.take(name, ("data", "more")[number % 2])
    snapshots.wait_ready(*names)
    contents = [one["metadata"]["name"] for one in snapshots.contents()]
    assert [len(snapshots.calls(CREATE, one)) for one in contents] == [1] * len(names)
    wait_until(
        lambda: not any("snapshot" in one for one in snapshots.claim_finalizers("data")),
        30,
        "the claim is free",
    )
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s-0"}
    snapshots.scene.claim("restored", snapshots.storage_class, dataSource=source)
    snapshots.scene.wait_bound("restored")
    for name in names:
        snapshots.delete(name)
    for name in names:
        snapshots.wait_gone(name)
    assert snapshots.contents() == []
    assert snapshots.left() == set()
    assert driver.concurrent_calls() == []
    assert snapshots.intents() == []


def test_deleted_while_the_driver_works(snapshots, driver):
    """SNT-065, SND-006: the snapshot is taken and then deleted; it never stays in Terminating."""
    driver.set_rules({"method": CREATE, "delay_seconds": 2, "times": 1})
    snapshots.bound("data")
    snapshots.take("s", "data")
    wait_until(
        lambda: snapshots.content("s") and "being-created" in str(snapshots.content("s")),
        30,
        "the call is under way",
    )
    snapshots.delete("s")
    snapshots.wait_gone("s")
    assert snapshots.contents() == []
    assert snapshots.left() == set()


def test_the_answer_is_lost_and_the_snapshot_deleted(snapshots, driver):
    """SNT-062, SNT-065: the call is repeated with the same name, then the snapshot is deleted."""
    driver.set_rules({"method": CREATE, "code": "UNAVAILABLE", "after_work": True, "times": 1})
    snapshots.bound("data")
    snapshots.take("s", "data")
    wait_until(snapshots.left, 30, "the driver made it")
    snapshots.delete("s")
    snapshots.wait_gone("s")
    assert snapshots.left() == set()


def test_workers_killed_while_the_driver_works(snapshots, driver, fleet):
    """SNT-092: the repeated call finds the one storage snapshot by its name."""
    driver.set_rules({"method": CREATE, "hang": True, "after_work": True, "times": 1})
    snapshots.bound("data")
    snapshots.take("s", "data")
    wait_until(snapshots.left, 30, "the driver made it")
    for pid in fleet.workers():
        os.kill(pid, signal.SIGKILL)
    snapshots.wait_ready("s")
    assert len(snapshots.left()) == 1
    snapshots.delete("s")
    snapshots.wait_gone("s")
    assert snapshots.left() == set()


def test_an_object_removed_by_force_leaves_nothing(snapshots, driver):
    """An operator patches the finalizers away during a call whose answer is lost."""
    driver.set_rules({"method": CREATE, "hang": True, "after_work": True, "times": 1})
    snapshots.bound("data")
    snapshots.take("s", "data")
    wait_until(snapshots.left, 30, "the driver made it")
    content = snapshots.content("s")["metadata"]["name"]
    bare = {"metadata": {"finalizers": None}}
    snapshots.delete("s")
    snapshots.api.patch(f"{snapshots.path}/s", bare)
    with suppress(KubeApiError):
        snapshots.api.delete(f"{ROOT}/volumesnapshotcontents/{content}")
    with suppress(KubeApiError):
        snapshots.api.patch(f"{ROOT}/volumesnapshotcontents/{content}", bare)
    wait_until(lambda: not snapshots.left(), 60, "the storage is clean")
    wait_until(lambda: not snapshots.intents(), 60, "no record is left")


def test_a_restore_that_waits_holds_the_snapshot(snapshots, driver):
    """SNT-042: the restored claim is bound first, then the snapshot is deleted."""
    snapshots.bound("data")
    snapshots.take("s", "data")
    snapshots.wait_ready("s")
    driver.set_rules({"method": "CreateVolume", "code": "UNAVAILABLE", "times": 3})
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
    snapshots.scene.claim("restored", snapshots.storage_class, dataSource=source)
    snapshots.scene.wait_event("restored", "code = Unavailable")
    snapshots.delete("s")
    snapshots.scene.wait_bound("restored")
    snapshots.wait_gone("s")
    assert snapshots.left() == set()


def test_a_driver_that_does_not_delete_is_told_with_its_cause(snapshots, driver):
    """SNT-076, SND-013: the content's status shows the driver's error until a retry succeeds."""
    refusal = {"code": "FAILED_PRECONDITION", "message": "has a clone", "times": 2}
    driver.set_rules({"method": DELETE, **refusal})
    snapshots.bound("data")
    snapshots.take("s", "data")
    snapshots.wait_ready("s")
    snapshots.delete("s")
    wait_until(
        lambda: "has a clone" in str((snapshots.content("s") or {}).get("status")),
        30,
        "the content tells the cause",
    )
    snapshots.wait_gone("s")
    assert snapshots.left() == set()
