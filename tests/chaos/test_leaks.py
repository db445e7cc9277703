"""Repeats with real processes each known sequence in which csi-provisioner leaks volumes.

Numbers are issues of kubernetes-csi/external-provisioner. A leak is a volume of the driver without
a PV once all work is done (I-6). docs/guarantees.md says what csi-provisioner does in each case.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator

import pytest
import redis

from tests.support.chaos import System
from tests.support.fleet import Scene
from tests.support.leaks import Told, source_goes_during_a_restore
from tests.support.refusal import volumes_refused
from tests.support.waiting import wait_until
from workers.queue.names import NAMES

SECONDS = 60
LOST_ANSWER = {"method": "CreateVolume", "code": "DEADLINE_EXCEEDED", "after_work": True}
# A worker that dies, without any notice, just before one effect.
DOOMED = """
import os, sys
from workers.engine import steps
allowed = steps.LeasedSteps.reach
def reach(self, step, lease):
    if step.value == os.environ["DIES_BEFORE"] and lease.key.kind == "claims":
        os._exit(9)
    allowed(self, step, lease)
steps.LeasedSteps.reach = reach
from workers.__main__ import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def system(own_plane, redis_binary, tmp_path_factory) -> Iterator[System]:
    flags = ("--resync-period=10s",)
    worker_flags = ("--timeout=5s", "--retry-interval-max=4s")
    directory = tmp_path_factory.mktemp("leaks")
    with System(
        directory,
        own_plane,
        redis_binary,
        workers=2,
        watchers=1,
        flags=flags,
        worker_flags=worker_flags,
    ) as running:
        yield running


@pytest.fixture
def scene(system) -> Iterator[Scene]:
    system.driver.set_rules()
    made = Scene(system.api)
    try:
        made.own_class = made.storage_class(system.driver.name)
        yield made
    finally:
        system.driver.set_rules()
        for part in system.parts.values():
            part.wanted = True
        made.clean_up()


def creates(system, claim) -> list:
    name = f"pvc-{claim['metadata']['uid']}"
    return [one for one in system.driver.calls("CreateVolume") if name in str(one.request)]


def called(system, claim, times: int = 1) -> None:
    wait_until(lambda: len(creates(system, claim)) >= times, SECONDS, f"{times} CreateVolume")


def kill_workers(system) -> None:
    for name in system.workers_():
        system.kill(name)


def nothing_leaked(system, scene) -> None:
    """Check twice that all work is done.

    The cluster may release a volume only after the first check.
    """
    system.assert_at_rest(SECONDS)
    scene.wait_gone(SECONDS)
    system.assert_at_rest(SECONDS)
    assert system.driver.volumes() == {}


def test_issues_131_and_311_claim_deleted_while_create_times_out(system, scene):
    """The driver creates the volume, its answers are lost, and the user deletes the claim."""
    system.driver.set_rules({**LOST_ANSWER, "times": 2})
    claim = scene.claim("gone", scene.own_class)
    called(system, claim)
    scene.delete("gone")
    called(system, claim, 3)
    nothing_leaked(system, scene)


def test_issue_486_worker_dies_during_create_and_the_claim_is_deleted(system, scene):
    """Only csi-fleet's intent shows that a volume may exist."""
    system.driver.set_rules({"method": "CreateVolume", "delay_seconds": 1.5, "times": 1})
    claim = scene.claim("gone", scene.own_class)
    called(system, claim)
    kill_workers(system)
    scene.delete("gone")
    nothing_leaked(system, scene)


def test_issue_486_everything_dies_during_create_and_the_claim_is_deleted(system, scene):
    """The workers and the watcher die; Redis keeps the intent."""
    system.driver.set_rules({"method": "CreateVolume", "delay_seconds": 1.5, "times": 1})
    claim = scene.claim("gone", scene.own_class)
    called(system, claim)
    kill_workers(system)
    system.kill("watcher-0")
    scene.delete("gone")
    nothing_leaked(system, scene)


def test_issue_1449_source_snapshot_and_claim_deleted_during_the_restore(system, scene):
    """Of several restores, the first to finish frees the snapshot for its deletion."""
    told = Told(system, scene, scene.own_class, 3)
    source_goes_during_a_restore(told)
    nothing_leaked(system, scene)


def test_issue_311_worker_dies_while_in_background_and_the_claim_is_deleted(system, scene):
    system.driver.set_rules({**LOST_ANSWER, "times": 3})
    claim = scene.claim("gone", scene.own_class)
    called(system, claim)
    kill_workers(system)
    scene.delete("gone")
    nothing_leaked(system, scene)


def test_c148_claim_deleted_and_redis_flushed_while_in_background(system, scene):
    """Only the ConfigMap still records the attempt."""
    system.driver.set_rules({**LOST_ANSWER, "times": 3})
    scene.claim("gone", scene.own_class)
    wait_until(system.copies, SECONDS, "the attempt is copied to a ConfigMap")
    kill_workers(system)
    scene.delete("gone")
    system.flush_redis()
    nothing_leaked(system, scene)


def test_c148_claim_deleted_and_redis_flushed_during_a_slow_call(system, scene):
    """After two seconds the attempt has a ConfigMap, which contains the deadline of the call.

    The driver runs two calls of the same name in parallel and continues the call of a dead worker.
    """
    system.driver.set_rules({"method": "CreateVolume", "delay_seconds": 4, "times": 1})
    scene.claim("gone", scene.own_class)
    wait_until(system.copies, SECONDS, "the attempt is copied to a ConfigMap")
    kill_workers(system)
    scene.delete("gone")
    system.flush_redis()
    nothing_leaked(system, scene)


def test_redis_flushed_during_a_fast_call_of_a_living_worker(system, scene):
    """The worker that made the call restores its intent, although its lease is lost."""
    system.driver.set_rules({"method": "CreateVolume", "delay_seconds": 1, "times": 1})
    claim = scene.claim("gone", scene.own_class)
    called(system, claim)
    system.flush_redis()
    scene.delete("gone")
    nothing_leaked(system, scene)


def test_issue_1469_claims_deleted_as_soon_as_they_are_provisioned(system, scene):
    """A worker with an outdated claim must not create the volume again after its deletion."""
    names = [f"short-{index}" for index in range(15)]
    claims = [scene.claim(name, scene.own_class) for name in names]
    waiting = dict(zip(names, claims, strict=True))

    def all_deleted() -> bool:
        for name, claim in list(waiting.items()):
            if scene.volume_of(claim):
                scene.delete(name)
                del waiting[name]
        return not waiting

    wait_until(all_deleted, SECONDS, "all provisioned and deleted", interval_seconds=0.01)
    nothing_leaked(system, scene)
    ended = [call for call in system.driver.calls() if call.method.endswith("Volume")]
    for claim in claims:
        story = [c.method for c in ended if f"pvc-{claim['metadata']['uid']}" in str(c.request)]
        assert story.count("CreateVolume") == 1


def test_c051_volume_that_cannot_be_saved_is_kept_over_crashes_and_a_wipe(system, scene):
    """G8: a volume that cannot be saved is never deleted, and is saved once that is allowed.

    The claim gets an event.
    """
    with volumes_refused(system.api, system.driver.name):
        claim = scene.claim("patient", scene.own_class)
        scene.wait_event("patient", "no volumes today")
        wait_until(system.copies, SECONDS, "the attempt is copied to a ConfigMap")
        before = set(system.driver.volumes())
        assert len(before) == 1
        kill_workers(system)
        scene.wait_event("patient", "no volumes today")
        system.flush_redis()
        called(system, claim, 2)
        assert set(system.driver.volumes()) == before
    scene.wait_bound("patient", timeout_seconds=SECONDS)
    assert system.handles() == before
    scene.delete("patient")
    nothing_leaked(system, scene)


def test_c053_volume_that_cannot_be_saved_and_its_claim_is_deleted(system, scene):
    with volumes_refused(system.api, system.driver.name):
        claim = scene.claim("gone", scene.own_class)
        scene.wait_event("gone", "no volumes today")
        wait_until(system.copies, SECONDS, "the attempt is copied to a ConfigMap")
        scene.delete("gone")
        kill_workers(system)
        system.flush_redis()
        called(system, claim, 2)
    nothing_leaked(system, scene)


@pytest.mark.parametrize("is_deleted", [False, True], ids=["claim stays", "claim deleted"])
@pytest.mark.parametrize("step", ["record-volume", "save-volume", "forget-intent", "finish-key"])
def test_c056_worker_ends_just_before(system, scene, tmp_path, step, is_deleted):
    """The real process calls os._exit between two effects."""
    for name in system.workers_():
        system.parts[name].wanted = False
        system.parts[name].kill()
    healthy = system.parts["worker-0"]
    system.add(f"doomed-{step}", [sys.executable, "-c", DOOMED, "worker"], healthy.command[4:-1])
    doomed = system.parts.pop(f"doomed-{step}")
    doomed.env = {**doomed.env, "DIES_BEFORE": step}
    doomed.start()
    try:
        claim = scene.claim("victim", scene.own_class)
        wait_until(lambda: not doomed.is_running, SECONDS, "the worker ended")
        assert doomed.process.popen.returncode == 9
    finally:
        doomed.kill()
    if is_deleted:
        scene.delete("victim")
    for name in system.workers_():
        system.parts[name].wanted = True
    if is_deleted:
        nothing_leaked(system, scene)
        return
    scene.wait_bound("victim", timeout_seconds=SECONDS)
    system.assert_at_rest(SECONDS)
    assert len(creates(system, claim)) == 1 + (step == "record-volume")
    assert len(system.driver.volumes()) == 1


def test_c146_sigterm_lets_the_call_end_and_loses_nothing(system, scene):
    """All workers get SIGTERM during CreateVolume.

    The call finishes, the PV is saved and the exit code is 0.
    """
    system.driver.set_rules({"method": "CreateVolume", "delay_seconds": 3, "times": 1})
    claim = scene.claim("kept", scene.own_class)
    called(system, claim)
    workers = [system.parts[name] for name in system.workers_()]
    started = time.monotonic()
    for part in workers:
        part.wanted = False
        part.process.signal(signal.SIGTERM)
    wait_until(lambda: not any(part.is_running for part in workers), 20, "the workers ended")
    print("workers ended after", round(time.monotonic() - started, 1), "s")
    assert [part.process.popen.returncode for part in workers] == [0, 0]
    assert scene.volume_of(claim)
    for part in workers:
        part.wanted = True
    scene.wait_bound("kept", timeout_seconds=SECONDS)
    assert len(creates(system, claim)) == 1
    scene.delete("kept")
    nothing_leaked(system, scene)


def owner_of_the_call(system) -> str:
    """Return the worker whose process holds the lease of the only claim."""
    with redis.Redis.from_url(system.redis.url, decode_responses=True) as client:
        (lease,) = client.hvals(NAMES["leases"].full)
    pid = int(lease.split(" ")[1].split(":")[-2])
    return next(name for name in system.workers_() if system.parts[name].process.pid == pid)


def test_c149_frozen_worker_writes_nothing_once_its_lease_is_lost(system, scene):
    """A worker is frozen by SIGSTOP during CreateVolume.

    Another worker repeats the call and saves the PV, so there is one volume.
    """
    system.driver.set_rules({"method": "CreateVolume", "delay_seconds": 2, "times": 1})
    claim = scene.claim("kept", scene.own_class)
    called(system, claim)
    frozen = system.parts[owner_of_the_call(system)]
    frozen.stopped_until = float("inf")
    frozen.process.signal(signal.SIGSTOP)
    try:
        scene.wait_bound("kept", timeout_seconds=SECONDS)
        assert len(creates(system, claim)) == 2
        system.assert_at_rest(SECONDS)
        before = scene.volume_of(claim)["metadata"]["resourceVersion"]
    finally:
        frozen.stopped_until = 0.0
        frozen.process.signal(signal.SIGCONT)

    def is_awake() -> bool:
        return "lease" in frozen.log.read_text() and "lost" in frozen.log.read_text()

    wait_until(is_awake, 20, "it notices that its lease is lost")
    system.assert_at_rest(SECONDS)
    assert len(creates(system, claim)) == 2
    assert scene.volume_of(claim)["metadata"]["resourceVersion"] == before
    scene.delete("kept")
    nothing_leaked(system, scene)
