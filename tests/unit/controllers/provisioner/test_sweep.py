"""Which snapshot finalizers are orphaned; a failed read proves nothing."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace

import pytest

from tests.support.fake_cluster import DRIVER, FakeKube, World
from workers.config.settings import ProvisionSettings, Settings
from workers.constants import FINALIZER_SNAPSHOT_SOURCE
from workers.controllers.provisioner.sweep import can_sweep, sweep_snapshots
from workers.errors import LeaseLost, QueueUnavailable
from workers.kube.errors import ConflictError, ForbiddenError, ServerError
from workers.queue.keys import sweep_key

ABILITIES = frozenset({"CREATE_DELETE_VOLUME", "CREATE_DELETE_SNAPSHOT"})
GROUP = "snapshot.storage.k8s.io"


class SnapshotKube(FakeKube):
    is_api_served = True

    def is_served(self, resource):
        return self.is_api_served

    def list_claims(self, namespace=""):
        self._reach("list_claims", namespace)
        return super().list_claims(namespace)

    def list_snapshots(self):
        self._reach("list_snapshots", "")
        return [deepcopy(one) for one in self.kind("volumesnapshots").values()]

    def get_snapshot_content(self, name):
        return self._get("volumesnapshotcontents", "", name, "get_snapshot_content")

    def update_snapshot(self, snapshot):
        return self._update("volumesnapshots", snapshot, "update_snapshot")


@pytest.fixture
def world():
    world = World(controller=ABILITIES)
    world.kube = SnapshotKube()
    effects = replace(world.effects, kube=world.kube)
    world.runtime = replace(world.runtime, kube=world.kube, effects=effects)
    return world


def add_snapshot(world, name="snap", finalizers=(FINALIZER_SNAPSHOT_SOURCE, "other"), **metadata):
    metadata = {"name": name, "namespace": "default", "finalizers": list(finalizers), **metadata}
    world.kube.add("volumesnapshots", {"metadata": metadata})


def add_claim(world, phase, field="dataSource", *, namespace="default", group=GROUP, place=None):
    reference = {"kind": "VolumeSnapshot", "name": "snap", "apiGroup": group}
    if place:
        reference["namespace"] = place
    claim = world.add_claim(
        f"c-{namespace}-{phase}", f"u-{namespace}-{phase}", **{field: reference}
    )
    world.kube.drop("persistentvolumeclaims", claim["metadata"]["name"], "default")
    claim["metadata"]["namespace"] = namespace
    claim["status"] = {"phase": phase}
    return world.kube.add("persistentvolumeclaims", claim)


def sweep(world):
    key = sweep_key(DRIVER)
    return sweep_snapshots(world.runtime, world.driver, key, world.lease(key, ""))


def is_protected(world):
    found = world.kube.kind("volumesnapshots")["snap"]["metadata"]["finalizers"]
    return FINALIZER_SNAPSHOT_SOURCE in found


@pytest.mark.parametrize(
    ("claims", "stays"),
    [
        pytest.param([], False, id="C-125 T-195 no claim"),
        pytest.param([{"phase": "Pending"}], True, id="C-125 T-194 pending"),
        pytest.param([{"phase": ""}], True, id="C-125 empty phase"),
        pytest.param([{"phase": "Bound"}], False, id="C-125 T-195 bound"),
        pytest.param([{"phase": "Bound"}, {"phase": "Pending"}], True, id="C-125 T-196 one of two"),
        pytest.param(
            [{"phase": "Pending", "field": "dataSourceRef"}], True, id="C-125 T-194 by ref"
        ),
        pytest.param(
            [
                {
                    "phase": "Pending",
                    "field": "dataSourceRef",
                    "namespace": "elsewhere",
                    "place": "default",
                }
            ],
            True,
            id="C-125 T-194 from another namespace",
        ),
        pytest.param([{"phase": "Pending", "namespace": "else"}], False, id="C-125 other snapshot"),
        pytest.param([{"phase": "Pending", "group": "x.io"}], False, id="C-125 T-197 wrong group"),
        pytest.param([{"phase": "Pending", "group": None}], True, id="C-125 no group"),
    ],
)
def test_finalizer_stays_while_needed(world, claims, stays):
    add_snapshot(world)
    for claim in claims:
        add_claim(world, **claim)
    sweep(world)
    assert is_protected(world) is stays
    assert "other" in world.kube.kind("volumesnapshots")["snap"]["metadata"]["finalizers"]


def test_c125_without_finalizer_no_call(world):
    add_snapshot(world, finalizers=["other"])
    sweep(world)
    assert world.kube.writes == []


def test_d016_attempt_of_a_deleted_claim_protects(world):
    """C-125: The claim is in no list, but the restore may still run."""
    add_snapshot(world)
    claim = add_claim(world, "Pending")
    world.kube.drop("persistentvolumeclaims", claim["metadata"]["name"], "default")
    world.intents.intents["pv"] = {"claim": claim, "stage": "background"}
    sweep(world)
    assert is_protected(world)


@pytest.mark.parametrize(
    "record",
    [{"stage": "failed"}, {"stage": "background", "claim": None}],
    ids=["ended with an error", "of no claim"],
)
def test_d016_only_an_attempt_that_may_still_run_protects(world, record):
    """D-016: A failed attempt no longer copies data; an intent without a claim proves nothing."""
    add_snapshot(world)
    claim = add_claim(world, "Pending")
    world.kube.drop("persistentvolumeclaims", claim["metadata"]["name"], "default")
    world.intents.intents["pv"] = {"claim": claim} | record
    sweep(world)
    assert not is_protected(world)


@pytest.mark.parametrize(
    ("content", "stays"),
    [
        pytest.param({"driver": "other.example.org"}, True, id="another driver's"),
        pytest.param({"driver": f"{DRIVER}.example.org"}, True, id="a longer name"),
        pytest.param({"driver": DRIVER}, False, id="this driver's"),
        pytest.param({}, False, id="of no driver"),
        pytest.param(None, False, id="its content is gone"),
    ],
)
def test_d016_another_drivers_snapshot_is_left_to_its_own_sweep(world, content, stays):
    """Only that driver's workers see the attempts that restore from the snapshot."""
    add_snapshot(world)
    world.kube.kind("volumesnapshots")["snap"]["status"] = {
        "boundVolumeSnapshotContentName": "content"
    }
    if content is not None:
        world.kube.add("volumesnapshotcontents", {"metadata": {"name": "content"}, "spec": content})
    sweep(world)
    assert is_protected(world) is stays


def test_g9_a_sweep_that_lost_its_lease_writes_nothing(world):
    """G9: Another worker runs the sweep now."""
    add_snapshot(world)
    key = sweep_key(DRIVER)
    lease = world.lease(key, "")
    lease.is_lost = True
    with pytest.raises(LeaseLost):
        sweep_snapshots(world.runtime, world.driver, key, lease)
    assert is_protected(world)


@pytest.mark.parametrize("call", ["list_claims", "list_snapshots"])
def test_c126_failed_read_removes_nothing(world, call):
    """SN-004: Treating the error as an empty list would remove all finalizers."""
    add_snapshot(world)
    world.kube.fail[call] = [ServerError(500, "InternalError", "no")]
    with pytest.raises(ServerError):
        sweep(world)
    assert is_protected(world)


def test_c126_unknown_attempts_remove_nothing(world):
    add_snapshot(world)

    def away(_driver):
        raise QueueUnavailable("redis: away")

    world.intents.all_of = away
    with pytest.raises(QueueUnavailable):
        sweep(world)
    assert is_protected(world)


def test_c126_no_permission_is_quiet(world):
    add_snapshot(world)
    world.kube.fail["list_snapshots"] = [ForbiddenError(403, "Forbidden", "no")]
    assert sweep(world).reason == "not permitted"
    assert is_protected(world)


def test_sn005_claim_that_comes_meanwhile_protects(world):
    """C-125: The second check, just before the removal, finds the claim."""
    add_snapshot(world)
    world.kube.fail["list_claims"] = [None, None]
    calls = []
    listed = world.kube.list_claims

    def list_claims(namespace=""):
        calls.append(namespace)
        found = list(listed(namespace))
        if len(calls) == 1:
            add_claim(world, "Pending")
        return found

    world.kube.list_claims = list_claims
    sweep(world)
    assert calls == ["", "default"]
    assert is_protected(world)


def test_sn005_a_restore_that_begins_meanwhile_protects_though_its_claim_is_gone(world):
    """SN-005, D-016: The second check reads the open attempts too."""
    add_snapshot(world)
    claim = add_claim(world, "Pending")
    world.kube.drop("persistentvolumeclaims", claim["metadata"]["name"], "default")
    looks = iter([{}, {"pv": {"claim": claim, "stage": "background"}}])
    world.intents.all_of = lambda _driver: next(looks)
    sweep(world)
    assert is_protected(world)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ConflictError(409, "Conflict", "no"), id="P-243 conflict"),
        pytest.param(ForbiddenError(403, "Forbidden", "no"), id="P-243 forbidden"),
        pytest.param(ServerError(500, "InternalError", "no"), id="P-243 other"),
    ],
)
def test_refused_update_is_left_to_the_next_sweep(world, error):
    add_snapshot(world)
    world.kube.fail["update_snapshot"] = [error]
    assert sweep(world).reason == "swept"
    assert is_protected(world)
    sweep(world)
    assert not is_protected(world)


FIELDS = {"f:metadata": {"f:finalizers": {f'v:"{FINALIZER_SNAPSHOT_SOURCE}"': {}}}}
OURS = {"manager": "csi-fleet", "time": "1970-01-01T00:01:40Z", "fieldsV1": FIELDS}
SECONDS = 20.0  # twice the driver's timeout


@pytest.fixture
def clocked(world):
    """Return a world whose queue clock the test sets; all sweeps share the key's state."""
    world.now, world.mark = 1000.0, {}
    driver = replace(world.driver.settings.driver, timeout_seconds=SECONDS / 2)
    settings = replace(world.driver.settings, driver=driver)
    world.driver = replace(world.driver, settings=settings)
    world.clock = lambda: world.now

    def turn(seconds=0.0):
        world.now += seconds
        key = sweep_key(DRIVER)
        lease = world.lease(key, "")
        lease.mark = world.mark
        world.runtime.effects.queue.mark = lambda _lease, mark: setattr(world, "mark", dict(mark))
        sweep_snapshots(world.runtime, world.driver, key, lease)
        return "snap" in world.kube.kind("volumesnapshots") and is_protected(world)

    world.turn = turn
    return world


@pytest.mark.parametrize("stamp", ["1970-01-01T00:01:40Z", "9999-12-31T00:00:00Z", "", "nonsense"])
def test_sn005_our_own_finalizer_goes_some_time_after_it_was_found_orphaned(clocked, stamp):
    """Only the queue's clock counts, so the API server's clock does not matter."""
    add_snapshot(clocked, uid="s1", managedFields=[OURS | {"time": stamp}])
    assert clocked.turn()
    assert clocked.turn(SECONDS - 1)
    assert not clocked.turn(1)
    assert clocked.turn(300) is False
    assert clocked.mark == {}


@pytest.mark.parametrize("change", [{"uid": "s2"}, {"time": "2026-01-01T00:00:00Z"}])
def test_sn005_a_finalizer_that_was_added_again_is_young_again(clocked, change):
    add_snapshot(clocked, uid="s1", managedFields=[OURS])
    assert clocked.turn()
    metadata = clocked.kube.kind("volumesnapshots")["snap"]["metadata"]
    metadata["uid"] = change.get("uid", "s1")
    metadata["managedFields"] = [OURS | {"time": change.get("time", OURS["time"])}]
    assert clocked.turn(SECONDS)
    assert not clocked.turn(SECONDS)


@pytest.mark.parametrize("change", [{"manager": "kubectl"}, {"fieldsV1": {}}, {"fieldsV1": None}])
def test_sn005_another_programs_finalizer_goes_at_once(clocked, change):
    add_snapshot(clocked, managedFields=[OURS | change])
    assert not clocked.turn()
    assert clocked.mark == {}


@pytest.mark.parametrize("mark", [{"young": 7}, {"young": {"s1 1970-01-01T00:01:40Z": "x"}}])
def test_sn005_an_unreadable_mark_makes_it_young(clocked, mark):
    add_snapshot(clocked, uid="s1", managedFields=[OURS])
    clocked.mark = mark
    assert clocked.turn()
    assert not clocked.turn(SECONDS)


def test_sn005_many_young_ones_leave_room_in_the_mark(clocked):
    for number in range(1000):
        add_snapshot(clocked, f"snap-{number}", uid=f"{number:036}", managedFields=[OURS])
    add_snapshot(clocked, uid="last", managedFields=[OURS])
    assert clocked.turn()
    assert len(json.dumps(clocked.mark)) < 64 * 1024
    for _ in range(9):
        is_left = clocked.turn(SECONDS)
    assert not is_left


def test_c127_t198_who_sweeps(world):
    off = Settings(provision=ProvisionSettings(snapshot_orphan_sweep_seconds=0))
    assert can_sweep(world.driver)
    assert not can_sweep(replace(world.driver, settings=off))
    assert not can_sweep(replace(world.driver, controller_capabilities=frozenset()))
    add_snapshot(world)
    world.kube.is_api_served = False
    assert sweep(world).reason == "no snapshots here"
