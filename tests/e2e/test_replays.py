"""Each Redis user puts back records that were valid once, and nothing in use changes.

One real fleet runs with shipped permissions. Every record type is tried with every user and every
fate of the object. The names of the cases describe the situation; each time storage and objects
must stay as they are.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager, suppress

import msgspec
import pytest
import redis

from tests.e2e.test_snapshots import ROOT, Snapshots
from tests.support.csi_driver import DirectoryDriver
from tests.support.kube_api import KubeApiError
from tests.support.secure_redis import DRIVER_USER
from tests.support.shipped_fleet import ShippedFleet
from tests.support.waiting import wait_until
from workers.cli.tools import Tools
from workers.config.load import parse
from workers.queue.keys import Key
from workers.queue.seal import Seal, content, tenant_of

USERS = ("watcher", "worker", DRIVER_USER, "beat", "flower", "operator")
INTENTS, UNSAVED, MARKS = "csifleet:intents", "csifleet:unsaved", "csifleet:marks"
"""What their proofs say; Redis has them in a key for each driver (`at`)."""
VOLUMES, CONTENTS = "/api/v1/persistentvolumes", f"{ROOT}/volumesnapshotcontents"


@pytest.fixture(scope="module")
def driver():
    with DirectoryDriver() as driver:
        yield driver


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, control_plane, redis_binary, driver):
    fleet = ShippedFleet(
        tmp_path_factory.mktemp("replays"),
        control_plane,
        redis_binary,
        [driver],
        "--provisioner-timeout=10s",
        "--snapshotter-timeout=10s",
        controllers="provisioner,snapshotter,snapshot-controller",
        components=("controller-snapshotter", "controller-snapshot-controller"),
    )
    fleet.__enter__()
    yield fleet
    fleet.stop()


def at(place, driver):
    """Return the Redis key of a driver's records."""
    return f"{place}:{driver.name}"


class Redis:
    """The fleet's Redis as an attacker and a bystander see it."""

    def __init__(self, fleet):
        self.fleet, self.tester = fleet, fleet.redis.client("tester")
        flags = [*fleet.redis.login("operator"), "pvc", "ns/name"]
        self.queue = Tools(parse("retry", flags, {})).queue
        key = (fleet.redis.secrets / "records-key").read_text().splitlines()
        self.seal = Seal.of_lines(key)

    @contextmanager
    def copied(self, place):
        """Copy all values of a hash that exist while the block runs."""
        found, is_over = {}, threading.Event()

        def copy():
            while not is_over.is_set():
                for field, raw in self.tester.hgetall(place).items():
                    found.setdefault(field, []).append(raw)
                time.sleep(0.003)

        thread = threading.Thread(target=copy, daemon=True)
        thread.start()
        yield found
        is_over.set()
        thread.join()

    def put_back(self, user, records):
        """Write the records that the user is allowed to write, and wait for their reconciles.

        Return True if any record was written.
        """
        written = []
        with self.fleet.redis.client(user) as client:
            for place, field, raw, key in records:
                with suppress(redis.exceptions.NoPermissionError):
                    client.hset(place, field, raw)
                    written.append(key)
        self.tester.acl_log_reset()
        for key in set(written):
            self.queue.add([Key.parse(key)])
            wait_until(lambda key=key: not self.is_waiting(key), 30, f"{key} was worked on")
        return bool(written)

    def is_waiting(self, key):
        """Return True if the key is waiting for a worker or leased by one."""
        return any(self.tester.hexists(f"csifleet:{name}", key) for name in ("since", "leases"))

    def drop(self, records):
        """Delete the records before the next case."""
        for place, field, _, _ in records:
            self.tester.hdel(place, field)


class State:
    """The objects of a volume or snapshot and its data in the storage, which must not change.

    Volumes of other tests may still be in deletion.
    """

    def __init__(self, scene, driver, handle, name):
        self.scene, self.driver, self.handle, self.name = scene, driver, handle, name
        self.known = self.now()

    def now(self):
        api, driver = self.scene.api, self.driver
        objects = {}
        for one in (*api.items(VOLUMES), *api.items(CONTENTS)):
            metadata = one["metadata"]
            if metadata["name"] == self.name or self.handle in json.dumps(one):
                objects[metadata["name"]] = (
                    metadata["uid"],
                    (one.get("status") or {}).get("phase"),
                )
        calls = [*driver.calls("DeleteVolume"), *driver.calls("DeleteSnapshot")]
        return {
            "objects": objects,
            "copies": [
                one["metadata"]["name"]
                for one in api.items("/api/v1/namespaces/csi-fleet-records/configmaps")
                if self.name.partition("-")[2] in one["metadata"]["name"]
            ],
            "is in the storage": self.handle in {*driver.volumes(), *driver.snapshots()},
            "deletions": sum(self.handle in json.dumps(one.request) for one in calls),
        }


def records_of_claim(store, scene, driver, name):
    """Provision a claim; return the records that existed meanwhile, and its PV."""
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 1.0})
    with store.copied(at(INTENTS, driver)) as found:
        claim = scene.claim(name, scene.storage_class(driver.name))
        scene.wait_bound(name)
    driver.set_rules()
    volume = scene.volume(f"pvc-{claim['metadata']['uid']}")
    field = next(one for one in found if claim["metadata"]["uid"].encode() in one)
    raw = found[field][0]
    record = json.loads(content(raw))
    # The unsaved PV exists only between the driver's answer and the save, which is too short to
    # copy it, so it is built here.
    kept = {name: volume[name] for name in ("apiVersion", "kind", "spec")}
    kept["spec"] = {**kept["spec"], "claimRef": dict(kept["spec"]["claimRef"])}
    kept["metadata"] = {
        name: volume["metadata"][name]
        for name in ("name", "annotations")
        if volume["metadata"].get(name)
    }
    pv = store.seal.close(UNSAVED, field.decode(), tenant_of(raw), msgspec.json.encode(kept))
    rows = {
        "intent": [(at(INTENTS, driver), field, raw, record["key"])],
        "intent and unsaved volume": [
            (at(INTENTS, driver), field, raw, record["key"]),
            (at(UNSAVED, driver), field, pv, record["key"]),
        ],
        "unsaved volume": [(at(UNSAVED, driver), field, pv, record["key"])],
    }
    return rows, volume


def keep(scene, volume):
    """Remove claim and PV with policy Retain, as runbooks describe it; the data stays."""
    api, name = scene.api, volume["metadata"]["name"]
    api.patch(f"{VOLUMES}/{name}", {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
    scene.delete(volume["spec"]["claimRef"]["name"])
    wait_until(
        lambda: (scene.volume(name) or {}).get("status", {}).get("phase") == "Released",
        30,
        "released",
    )
    api.delete(f"{VOLUMES}/{name}")
    wait_until(lambda: scene.volume(name) is None, 30, "the old PV is gone")


def import_volume(scene, driver, volume, name):
    """Create a PV by hand for an existing volume, and its claim."""
    pv = f"{name}-{scene.name}"
    scene.api.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": pv},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "static",
                "csi": {
                    "driver": driver.name,
                    "volumeHandle": volume["spec"]["csi"]["volumeHandle"],
                },
                "claimRef": {"namespace": scene.namespace, "name": name},
            },
        }
    )
    scene.claim(name, "static", volumeName=pv)
    scene.wait_bound(name)


def ended(scene, driver, volume):
    """The claim is bound to the volume."""


def gone(scene, driver, volume):
    """No object of this cluster names the volume: it is retained, or belongs to another cluster."""
    keep(scene, volume)


def another_pv(scene, driver, volume):
    """The volume holds the data of another claim."""
    keep(scene, volume)
    import_volume(scene, driver, volume, "archive")


def judge(store, scene, driver, rows, handle, name):
    """Put back each record type as each user; return what changed."""
    wrong, tried = [], 0
    for what, records in rows.items():
        for user in USERS:
            before = State(scene, driver, handle, name)
            if not store.put_back(user, records):
                continue
            tried += 1
            after = before.now()
            if after != before.known:
                wrong.append((what, user, before.known, after))
            store.drop(records)
    # Watcher and operator can write; another driver's worker and Celery's users cannot.
    assert tried >= 2 * len(rows)
    return wrong


@pytest.mark.parametrize("situation", [ended, gone, another_pv])
def test_no_volume_is_touched(fleet, driver, scene, situation):
    store = Redis(fleet)
    rows, volume = records_of_claim(store, scene, driver, "data")
    situation(scene, driver, volume)
    handle = volume["spec"]["csi"]["volumeHandle"]
    assert judge(store, scene, driver, rows, handle, volume["metadata"]["name"]) == []
    assert handle in driver.volumes()
    for one in scene.api.items(VOLUMES):
        if one["spec"].get("csi", {}).get("volumeHandle") == handle:
            with suppress(KubeApiError):
                scene.api.delete(f"{VOLUMES}/{one['metadata']['name']}")


@pytest.mark.parametrize("user", ["watcher", "worker", "operator"])
def test_an_attempt_that_is_open_is_ended_whoever_puts_its_record_back(fleet, driver, scene, user):
    """The claim was deleted while the driver did not answer."""
    store = Redis(fleet)
    driver.set_rules({"method": "CreateVolume", "code": "UNAVAILABLE"})
    claim = scene.claim("data", scene.storage_class(driver.name))
    field = f"pvc-{claim['metadata']['uid']}".encode()
    with store.copied(at(INTENTS, driver)) as found:
        wait_until(lambda: field in found, 30, "the attempt is recorded")
    raws = found[field]
    scene.delete("data")
    key = json.loads(content(raws[0]))["key"]
    store.put_back(user, [(at(INTENTS, driver), field, raws[0], key)])
    driver.set_rules()
    store.queue.add([Key.parse(key)])
    wait_until(
        lambda: not store.tester.hexists(at(INTENTS, driver), field), 90, "the attempt is ended"
    )
    name = f"pvc-{claim['metadata']['uid']}"
    wait_until(lambda: scene.volume(name) is None, 60, "nothing is left of it")
    assert driver.calls("CreateVolume")[-1].code == "OK"


def records_of_snapshot(store, scene, driver, snapshots):
    """Take a snapshot; return the reconcile state that existed meanwhile, and its content."""
    driver.set_rules({"method": "CreateSnapshot", "delay_seconds": 1.0})
    with store.copied(at(MARKS, driver)) as found:
        snapshots.take("snap", "data")
        snapshots.wait_ready("snap")
    driver.set_rules()
    made = snapshots.content("snap")
    field = next(one for one in found if made["metadata"]["name"].encode() in one)
    raw = found[field][0]
    record = json.loads(content(raw))
    record["intent"] |= {"handle": made["status"]["snapshotHandle"], "deadline": []}
    answered = store.seal.close(MARKS, field.decode(), tenant_of(raw), msgspec.json.encode(record))
    key = field.decode()
    return {
        "mark of a call": [(at(MARKS, driver), field, raw, key)],
        "mark with the driver's answer": [(at(MARKS, driver), field, answered, key)],
    }, made


def keep_snapshot(scene, snapshots, made):
    """Delete the objects with policy Retain, as Velero does; the snapshot stays."""
    name = made["metadata"]["name"]
    scene.api.patch(f"{CONTENTS}/{name}", {"spec": {"deletionPolicy": "Retain"}})
    snapshots.delete("snap")
    snapshots.wait_gone("snap")
    with suppress(KubeApiError):
        scene.api.delete(f"{CONTENTS}/{name}")
    wait_until(lambda: scene.api.find(f"{CONTENTS}/{name}") is None, 60, "the content is gone")


def import_snapshot(scene, driver, snapshots, made):
    """Create a content by hand for an existing snapshot, and its VolumeSnapshot."""
    name = f"backup-{scene.name}"
    snapshots.create(
        "VolumeSnapshotContent",
        name,
        spec={
            "driver": driver.name,
            "deletionPolicy": "Retain",
            "source": {"snapshotHandle": made["status"]["snapshotHandle"]},
            "volumeSnapshotRef": {"namespace": scene.namespace, "name": "backup"},
        },
    )
    snapshots.create(
        "VolumeSnapshot",
        "backup",
        metadata={"name": "backup", "namespace": scene.namespace},
        spec={"source": {"volumeSnapshotContentName": name}},
    )
    snapshots.wait_ready("backup")


@pytest.mark.parametrize("situation", ["ended", "gone", "another content"])
def test_no_snapshot_is_touched(fleet, driver, scene, situation):
    store, snapshots = Redis(fleet), Snapshots(scene, driver)
    snapshots.bound("data")
    rows, made = records_of_snapshot(store, scene, driver, snapshots)
    if situation != "ended":
        keep_snapshot(scene, snapshots, made)
    if situation == "another content":
        import_snapshot(scene, driver, snapshots, made)
    handle = made["status"]["snapshotHandle"]
    assert judge(store, scene, driver, rows, handle, made["metadata"]["name"]) == []
    assert handle in driver.snapshots()
    for name in [one["metadata"]["name"] for one in scene.api.items(CONTENTS)]:
        with suppress(KubeApiError):
            scene.api.delete(f"{CONTENTS}/{name}")
