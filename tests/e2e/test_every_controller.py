"""Runs all controllers in both modes: each guarantee holds for all nine operations."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager

import pytest
import redis

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet, leader_flags
from tests.support.life import CAPABILITIES, CONTROLLERS, FLAGS, Life
from tests.support.processes import Process
from tests.support.tool import Tool
from tests.support.waiting import let_pass, wait_until
from workers.controllers import catalogue


@pytest.fixture(scope="module")
def drivers():
    arguments = [f"--capabilities={CAPABILITIES}"]
    with DirectoryDriver(arguments=arguments) as one, DirectoryDriver(arguments=arguments) as two:
        yield one, two


@contextmanager
def fleet_of(mode, directory, kubeconfig, drivers, *flags):
    """Run one program with all controllers. Central mode reads a drivers file."""
    directory.mkdir(exist_ok=True)
    file = directory / "drivers.yaml"
    lines = [f"- {{name: {one.name}, endpoint: {one.address}}}\n" for one in drivers]
    file.write_text("drivers:\n" + "".join(lines))
    addresses = drivers if mode == "sidecar" else ()
    flags += () if addresses else (f"--drivers-file={file}",)
    flags += (f"--controllers={CONTROLLERS}", *FLAGS)
    with Fleet(directory / "f", kubeconfig, addresses, *flags) as fleet:
        yield fleet


def all_done(life):
    assert life.undone() == []
    return True


@pytest.mark.parametrize("mode", ["sidecar", "central"])
def test_a_paused_driver_waits_alone(mode, kubeconfig, scene, drivers, tmp_path):
    """The paused driver gets no call, and `explain` says why; the other gets one per operation.

    After `resume`, the paused driver gets its calls too.
    """
    paused, other = lives = [Life(scene, one) for one in drivers]
    with fleet_of(mode, tmp_path, kubeconfig, drivers) as fleet:
        try:
            tool = Tool(kubeconfig, fleet.redis_url)
            for life in lives:
                life.prepare()
            tool.ok("pause", f"--driver={paused.driver.name}", "--reason=upgrade")
            for life in lives:
                life.begin()
            wait_until(lambda: all_done(other), 90, "the other driver's work is done")
            for name, one in paused.operations().items():
                if one.explained is None:
                    continue
                text = tool.wait_cause(*one.explained, "paused", 30)
                assert "upgrade" in text, name
            assert set(paused.called().values()) == {0}
            tool.ok("resume", f"--driver={paused.driver.name}")
            wait_until(lambda: all_done(paused), 90, "its work is done")
            for life in lives:
                assert life.called() == dict.fromkeys(life.operations(), 1)
        finally:
            for life in lives:
                life.clean_up()
            scene.clean_up()  # while a worker runs that can delete the volumes


def test_sigterm_ends_no_call(kubeconfig, scene, drivers, tmp_path):
    """A-008, SNA-110, SND-028, DA-031: after SIGTERM all running calls finish and are saved.

    The program exits with 0 and starts no further call.
    """
    life = Life(scene, drivers[0])
    with fleet_of("sidecar", tmp_path, kubeconfig, drivers[:1]) as fleet:
        life.prepare()
        life.answer_all({"delay_seconds": 4})
        life.begin()
        wait_until(lambda: set(life.called().values()) == {1}, 60, "every call is under way")
        signalled = time.time()
        assert fleet.stop() == 0
        assert [c.method for c in life.driver.calls() if c.started_at > signalled] == []
        # The cluster binds the claim itself. The snapshot controller may still have to update its
        # objects.
        left = set(life.undone()) - {"create"}
        assert left <= {"snapshot", "delete-snapshot"}
        fleet.start()
        wait_until(lambda: all_done(life), 60, "the rest")
        assert set(life.called().values()) == {1}
        life.clean_up()
        scene.clean_up()


def workers_killed(fleet, driver):
    for pid in fleet.workers():
        os.kill(pid, signal.SIGKILL)


def worker_frozen(fleet, driver):
    """Freeze a worker for longer than its lease, so that others take over before it continues."""
    pids = fleet.workers()[:1]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    let_pass(6)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def redis_flushed(fleet, driver):
    with redis.Redis.from_url(fleet.redis_url) as client:
        client.flushall()


def driver_killed(fleet, driver):
    driver.kill()
    driver.start()


@pytest.mark.parametrize(
    "fault",
    [workers_killed, worker_frozen, redis_flushed, driver_killed],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("mode", ["sidecar", "central"])
def test_nothing_is_doubled_lost_or_left(mode, fault, kubeconfig, scene, drivers, tmp_path):
    """A fault occurs during nine calls: each operation finishes once and no two calls overlap."""
    life = Life(scene, drivers[0])
    before = len(life.driver.concurrent_calls())
    with fleet_of(mode, tmp_path, kubeconfig, drivers[:1], "--workers=2") as fleet:
        try:
            life.prepare()
            life.answer_all({"delay_seconds": 3})
            life.begin()
            wait_until(lambda: min(life.called().values()) == 1, 60, "every call is under way")
            fault(fleet, life.driver)
            wait_until(lambda: all_done(life), 90, "everything is done")
            assert len(life.driver.concurrent_calls()) == before
        finally:
            life.clean_up()
            scene.clean_up()
        wait_until(lambda: life.driver.volumes() == {}, 60, "no volume is left")
        # If a worker died, the deletion waits until the deadline of its call, a minute later.
        wait_until(lambda: life.driver.snapshots() == {}, 120, "no snapshot is left")


def owners(operation):
    """Return the controllers whose Leases must be free before the operation."""
    (spec,) = (one for one in catalogue.SPECS for kind in one.kinds if operation in kind.operations)
    return {spec.name} | ({"snapshot-controller"} if spec.name == "snapshotter" else set())


def test_each_controller_waits_for_the_holder_of_its_own_lease(
    kubeconfig, scene, drivers, tmp_path
):
    """M-020: another program holds all Leases and releases one after the other.

    No driver call comes before its Lease is free.
    """
    driver = drivers[0]
    life, specs = Life(scene, driver, recovers=False), catalogue.choose(CONTROLLERS)
    leases = {one.name: one.lease_name(driver.name) for one in specs if one.lease_name is not None}
    path = f"/apis/coordination.k8s.io/v1/namespaces/{scene.namespace}/leases"
    with fleet_of("sidecar", tmp_path, kubeconfig, drivers[:1]):
        life.prepare()
    for name in leases.values():
        metadata = {"name": name, "namespace": scene.namespace}
        spec = {"holderIdentity": "go", "leaseDurationSeconds": 3600}
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        scene.api.create({**kind, "metadata": metadata, "spec": spec})
    election = leader_flags(scene.namespace)
    with fleet_of("sidecar", tmp_path, kubeconfig, drivers[:1], *election) as fleet:
        try:
            log = fleet.log_text
            wait_until(lambda: all(f"/{one}" in log() for one in leases.values()), 30, "it waits")
            life.begin()
            free: set[str] = set()
            for name, lease in leases.items():
                wanted = {one for one in life.operations() if owners(one) <= free}
                wait_until(lambda wanted=wanted: not wanted & {*life.undone()}, 60, f"{wanted}")
                let_pass(2)  # longer than the interval between two reads of a Lease
                early = {one: count for one, count in life.called().items() if one not in wanted}
                assert set(early.values()) <= {0}, (name, early)
                free.add(name)
                scene.api.patch(f"{path}/{lease}", {"spec": {"holderIdentity": ""}})
            wait_until(lambda: all_done(life), 60, "everything is done")
            assert set(life.called().values()) == {1}
        finally:
            life.clean_up()
            scene.clean_up()


@pytest.mark.parametrize("end", [Process.stop, Process.kill], ids=lambda one: one.__name__)
def test_replicas_that_bring_their_own_redis_take_turns(end, kubeconfig, scene, drivers, tmp_path):
    """Two replicas with `--leader-election`, as charts run them: only one calls the drivers.

    Neither sees the other's calls in its own Redis.
    """
    flags = leader_flags(scene.namespace)
    lives = [Life(scene, one, recovers=False) for one in drivers]
    before = sum(len(one.concurrent_calls()) for one in drivers)
    with (
        fleet_of("sidecar", tmp_path / "a", kubeconfig, drivers, *flags) as one,
        fleet_of("sidecar", tmp_path / "b", kubeconfig, drivers, *flags) as other,
    ):
        try:
            for life in lives:
                life.prepare()
                life.answer_all({"delay_seconds": 3})
            lives[0].begin()
            wait_until(lambda: all_done(lives[0]), 90, "everything is done")
            assert set(lives[0].called().values()) == {1}
            lives[1].begin()
            wait_until(lambda: min(lives[1].called().values()) == 1, 60, "every call is under way")
            assert "acquired the Lease" in one.log_text()
            assert "acquired the Lease" not in other.log_text()
            end(one.process)
            wait_until(lambda: all_done(lives[1]), 90, "the other one does the rest")
            assert sum(len(one.concurrent_calls()) for one in drivers) == before
        finally:
            for life in lives:
                life.clean_up()
            scene.clean_up()
