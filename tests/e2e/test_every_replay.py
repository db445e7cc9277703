"""Each Redis user puts all records of a driver's operations back later (SEC2-1).

`Life` requests one of every operation. The first call of each gets no answer and the second is
slow. Meanwhile the test copies everything that Redis stores about the driver, and the intent copies
in ConfigMaps. When a user puts these back later, no object, volume or snapshot changes, and no call
is made.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import redis

from tests.e2e.test_replays import CONTENTS, UNSAVED, USERS, VOLUMES
from tests.support.attach_cluster import ATTACHMENTS
from tests.support.csi_driver import DirectoryDriver
from tests.support.kube_api import KubeApiError
from tests.support.life import CAPABILITIES, CONTROLLERS, FLAGS, Life, Operation
from tests.support.replayed import EVERY, REPLAYED
from tests.support.shipped import RECORDS
from tests.support.shipped_fleet import ShippedFleet
from tests.support.waiting import wait_until
from tests.support.write_pairs import GROUPS
from workers.cli.tools import Tools
from workers.config.load import parse
from workers.queue.keys import Key
from workers.queue.names import NAMES, USUAL
from workers.queue.seal import Seal, content, tenant_of

GROUP_CRDS = Path(__file__).parents[1] / "parity" / "runner" / "crds" / "groupsnapshots.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP_API = f"/apis/{GROUPS}"
GROUP_CONTENTS = f"{GROUP_API}/volumegroupsnapshotcontents"
COPIES = f"/api/v1/namespaces/{RECORDS}/configmaps"
FAMILIES = {name for name, test in REPLAYED.items() if test == EVERY}
TIMED = ("provisioner", "attacher", "resizer", "snapshotter", "health")
# ControllerUnpublishVolume is left out: it may be repeated for a volume that is published nowhere.
EFFECTS = ("Create", "Delete", "ControllerPublish", "ControllerExpand", "ControllerModify")
WRITES = {
    "hash": lambda client, place, field, raw: client.hset(place, field, raw),
    "string": lambda client, place, _, raw: client.set(place, raw),
    "zset": lambda client, place, field, raw: client.zadd(place, {field: raw}),
}
READS = {
    "hash": lambda client, place: client.hgetall(place),
    "string": lambda client, place: {b"": client.get(place)},
    "zset": lambda client, place: dict(client.zrange(place, 0, -1, withscores=True)),
}


@pytest.fixture(scope="module")
def driver():
    names = f"{CAPABILITIES},CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"
    with DirectoryDriver(arguments=["--capabilities", names]) as driver:
        yield driver


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, control_plane, redis_binary, driver):
    with control_plane.api() as api:
        made = [one["metadata"]["name"] for one in api.apply_file(GROUP_CRDS)]
        wait_until(lambda: api.items(GROUP_CONTENTS) == [], 30, "groups are served")
    fleet = ShippedFleet(
        tmp_path_factory.mktemp("replays"),
        control_plane,
        redis_binary,
        [driver],
        *(f"--{name}-timeout=4s" for name in TIMED),
        *FLAGS,
        controllers=CONTROLLERS,
        components=[f"controller-{name}" for name in CONTROLLERS.split(",")[1:]],
    )
    with fleet:
        yield fleet
        fleet.redis.client("tester").acl_log_reset()
    with control_plane.api() as api:
        for name in made:
            api.delete(f"{CRDS}/{name}")
        wait_until(lambda: not any(api.find(f"{CRDS}/{one}") for one in made), 60, "CRDs are gone")


class Everything(Life):
    """A life with a group snapshot."""

    def operations(self):
        return super().operations() | {
            "group-snapshot": Operation(
                "CreateVolumeGroupSnapshot", self._cut_group, self._is_group_ready, None
            )
        }

    @property
    def groups(self):
        return f"{GROUP_API}/namespaces/{self.scene.namespace}/volumegroupsnapshots"

    def _cut_group(self):
        path = f"{self.scene.claims_path}/{self.name}-is-cut"
        self.api.patch(path, {"metadata": {"labels": {"group": "g"}}})
        kind = {"apiVersion": GROUPS, "metadata": {"name": self.name}}
        body = {"driver": self.driver.name, "deletionPolicy": "Delete"}
        self.api.create({**kind, "kind": "VolumeGroupSnapshotClass", **body})
        source = {"selector": {"matchLabels": {"group": "g"}}}
        kind["metadata"]["namespace"] = self.scene.namespace
        spec = {"source": source, "volumeGroupSnapshotClassName": self.name}
        self.api.create({**kind, "kind": "VolumeGroupSnapshot", "spec": spec})

    def _is_group_ready(self):
        found = self.api.find(f"{self.groups}/{self.name}") or {}
        return (found.get("status") or {}).get("readyToUse")

    def clean_up(self):
        super().clean_up()
        for path in (
            f"{self.groups}/{self.name}",
            f"{GROUP_API}/volumegroupsnapshotclasses/{self.name}",
        ):
            with suppress(KubeApiError):
                self.api.delete(path)


class Attacker:
    """Copies what Redis stores about the driver, and puts it back as one of the Redis users."""

    def __init__(self, fleet, life):
        self.fleet, self.life, self.api = fleet, life, life.api
        self.tester = fleet.redis.client("tester")
        self.tester.acl_log_reset()
        flags = [*fleet.redis.login("operator"), "pvc", "ns/name"]
        self.queue = Tools(parse("retry", flags, {})).queue
        self.seal = Seal.of_lines((fleet.redis.secrets / "records-key").read_text().splitlines())
        self.found, self.copies = {}, {}

    @contextmanager
    def copying(self):
        """Copy every value that the driver's records have while the block runs."""
        is_over = threading.Event()

        def copy():
            with suppress(redis.exceptions.ConnectionError):
                while not is_over.wait(0.005):
                    self._copy()

        thread = threading.Thread(target=copy, daemon=True)
        thread.start()
        yield
        is_over.set()
        thread.join()

    def _copy(self):
        for place in self.tester.scan_iter(f"csifleet:*:{self.life.driver.name}*", count=1000):
            entry = USUAL.declared(place.decode())
            if entry.name in FAMILIES:
                for field, raw in READS[entry.type](self.tester, place).items():
                    seen = self.found.setdefault((entry.name, place, field), [])
                    seen += [raw] if raw not in seen else []

    def copy_copies(self):
        for one in self.api.items(COPIES, labelSelector="csi-fleet.io/intent"):
            self.copies.setdefault(one["metadata"]["name"], one)

    def rows(self):
        """Return (place, field, value, key) by family, with each first and last value."""
        rows = {name: [] for name in sorted(FAMILIES)}
        for (name, place, field), raws in self.found.items():
            key = self._key(name, field, raws[0])
            rows[name] += [(place, field, raw, key) for raw in (raws[0], raws[-1])]
        return rows

    @staticmethod
    def _key(family, field, raw):
        if family == "intents":
            return json.loads(content(raw))["key"]
        return field.decode() if family in {"marks", "memos"} else ""

    def unsaved(self, intents):
        """Yield an unsaved PV for the first intent.

        It exists in Redis only between the driver's answer and the save, which is too short to copy
        it.
        """
        for _, field, raw, key in intents[:1]:
            volume = self.api.get(f"{VOLUMES}/{field.decode()}")
            kept = {name: volume[name] for name in ("apiVersion", "kind", "spec")}
            kept["metadata"] = {"name": volume["metadata"]["name"]}
            kept["metadata"]["annotations"] = volume["metadata"]["annotations"]
            place, text = f"{UNSAVED}:{self.life.driver.name}", msgspec.json.encode(kept)
            yield place, field, self.seal.close(UNSAVED, field.decode(), tenant_of(raw), text), key

    def put_back(self, user, rows):
        """Write the rows that the user is allowed to write, and wait for their reconciles."""
        written = False
        with self.fleet.redis.client(user) as client:
            for place, field, raw, _ in rows:
                with suppress(redis.exceptions.NoPermissionError):
                    kind = USUAL.declared(place if isinstance(place, str) else place.decode()).type
                    WRITES[kind](client, place, field, raw)
                    written = True
        return written

    def work(self, rows):
        """Queue the keys of all rows and wait until they were reconciled."""
        keys = sorted({key for _, _, _, key in rows if key})
        self.queue.add(map(Key.parse, keys))
        wait_until(lambda: not any(map(self._is_waiting, keys)), 60, "all keys were worked on")

    def _is_waiting(self, key):
        return any(self.tester.hexists(f"csifleet:{name}", key) for name in ("since", "leases"))

    def make_copies_again(self):
        """Restore the ConfigMaps as an administrator does from a backup; no Redis user could."""
        for name, one in self.copies.items():
            metadata = {part: one["metadata"].get(part) for part in ("labels", "annotations")}
            kind = {"apiVersion": "v1", "kind": "ConfigMap", "data": one["data"]}
            self.api.delete(f"{COPIES}/{name}")
            self.api.create(kind | {"metadata": {**metadata, "name": name, "namespace": RECORDS}})

    def tidy(self, rows):
        for place, field, _, _ in rows:
            if USUAL.declared(place if isinstance(place, str) else place.decode()).type == "hash":
                self.tester.hdel(place, field)


def state(life):
    """Return all objects of the driver, its storage, and how often each effect was requested."""
    api, driver = life.api, life.driver
    paths = (VOLUMES, CONTENTS, GROUP_CONTENTS, ATTACHMENTS, life.scene.claims_path)
    objects = {
        f"{path}/{one['metadata']['name']}": {
            "uid": one["metadata"]["uid"],
            "finalizers": one["metadata"].get("finalizers"),
            "spec": one.get("spec"),
            "status": one.get("status"),
        }
        for path in paths
        for one in api.items(path)
        if driver.name in json.dumps(one) or life.scene.namespace in json.dumps(one)
    }
    published = {one.name: one.read_text() for one in (driver.root / "published").glob("*.json")}
    return {
        **objects,
        "volumes": driver.volumes(),
        "snapshots": driver.snapshots(),
        "published": published,
        **Counter(
            f"{one.method} {one.volumes}"
            for one in driver.calls()
            if one.method.startswith(EFFECTS)
        ),
    }


def differences(before, after):
    return {
        name: (before.get(name), after.get(name))
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
    }


def ended(life):
    """Every operation has its result."""


def kept(life):
    """The data stays in the storage and every object is deleted, as runbooks describe it."""
    api, driver = life.api, life.driver
    for one in life.cluster.attachments():
        api.delete(f"{ATTACHMENTS}/{one['metadata']['name']}")
    wait_until(lambda: life.cluster.attachments() == [], 30, "all is detached")
    retain = {
        VOLUMES: {"persistentVolumeReclaimPolicy": "Retain"},
        CONTENTS: {"deletionPolicy": "Retain"},
        GROUP_CONTENTS: {"deletionPolicy": "Retain"},
    }
    paths = {path: own(api, path, driver) for path in retain}
    for path, names in paths.items():
        for name in names:
            api.patch(f"{path}/{name}", {"spec": retain[path]})
    snapshots = (
        f"/apis/snapshot.storage.k8s.io/v1/namespaces/{life.scene.namespace}/volumesnapshots"
    )
    for path in (life.groups, snapshots, life.scene.claims_path):
        for one in api.items(path):
            with suppress(KubeApiError):
                api.delete(f"{path}/{one['metadata']['name']}")
        wait_until(lambda path=path: api.items(path) == [], 60, f"{path} is empty")
    for path, names in paths.items():
        for name in names:
            with suppress(KubeApiError):
                api.delete(f"{path}/{name}")
        wait_until(lambda path=path: own(api, path, driver) == [], 60, f"{path} is empty")


def own(api, path, driver):
    return [one["metadata"]["name"] for one in api.items(path) if driver.name in json.dumps(one)]


def handed_over(life):
    """Other objects now name the same volumes, snapshots and publication."""
    kept(life)
    api, driver = life.api, life.driver
    for number, handle in enumerate(driver.volumes()):
        name = f"{life.name}-by-hand-{number}"
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": driver.name, "volumeHandle": handle},
        }
        kind = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
        api.create({**kind, "spec": spec})
        life.cluster.attach(f"{name}-va", driver.name, name, life.node)
        wait_until(lambda name=name: life._is_attached(name), 30, "attached again")
    for number, handle in enumerate(driver.snapshots()):
        name = f"{life.name}-by-hand-{number}"
        reference = {"namespace": life.scene.namespace, "name": name}
        spec = {
            "driver": driver.name,
            "deletionPolicy": "Retain",
            "source": {"snapshotHandle": handle},
            "volumeSnapshotRef": reference,
        }
        life._snapshot_object("VolumeSnapshotContent", {"name": name}, spec=spec)
        spec = {"source": {"volumeSnapshotContentName": name}}
        life._snapshot_object("VolumeSnapshot", reference, spec=spec)
        path = f"/apis/snapshot.storage.k8s.io/v1/namespaces/{life.scene.namespace}"
        wait_until(
            lambda path=f"{path}/volumesnapshots/{name}": (api.get(path).get("status") or {}).get(
                "readyToUse"
            ),
            30,
            "the snapshot is ready",
        )


def of_another_cluster(life):
    """This cluster never had these objects: `elsewhere` changes the records."""
    kept(life)


def elsewhere(attacker, rows):
    """Yield the records as another cluster with this signing key has them: with other UIDs."""
    for name, records in rows.items():
        for place, field, raw, key in records:
            if not key or not isinstance(raw, bytes):
                continue
            if not (match := re.search(r"\w{8}(-\w{4}){3}-\w{12}", key)):
                continue  # it belongs to no object
            uid = match[0]
            other = f"{uid[:-4]}{'1111' if uid.endswith('0000') else '0000'}"
            text = content(raw).decode().replace(uid, other).encode()
            domain = field.decode().replace(uid, other)
            sealed = attacker.seal.close(f"csifleet:{name}", domain, tenant_of(raw), text)
            yield name, (place, domain, sealed, key.replace(uid, other))


def taken(fleet, life, meanwhile=lambda _: None):
    """Run every operation, with one lost answer each; return what Redis stored meanwhile."""
    attacker = Attacker(fleet, life)
    life.prepare()
    life.answer_all({"code": "DEADLINE_EXCEEDED", "times": 1}, {"delay_seconds": 1})
    with attacker.copying():
        life.begin()

        def is_done():
            attacker.copy_copies()
            meanwhile(attacker)
            return life.undone() == []

        wait_until(is_done, 90, "everything is done")
    life.driver.set_rules()
    return attacker


@pytest.fixture
def life(fleet, scene, driver):
    life = Everything(scene, driver)
    yield life
    driver.set_rules()
    kept(life)
    life.clean_up()
    with fleet.redis.client("tester") as client:
        hashes = [NAMES[one].full for one in FAMILIES if NAMES[one].type == "hash"]
        client.delete(*(f"{name}{driver.name}" for name in hashes))
    for copy in life.api.items(COPIES, labelSelector="csi-fleet.io/intent"):
        life.api.delete(f"{COPIES}/{copy['metadata']['name']}")
    for one in ("volumes", "snapshots", "published"):
        for path in (driver.root / one).glob("[!.]*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("situation", [ended, kept, handed_over, of_another_cluster])
def test_what_is_put_back_changes_nothing(fleet, life, situation):
    attacker = taken(fleet, life)
    rows = attacker.rows()
    rows["unsaved"] += attacker.unsaved(rows["intents"])
    assert [name for name, found in rows.items() if not found] == [], "families without a record"
    kinds = {Key.parse(key).kind for *_, key in rows["marks"]}
    assert {"contents", "group-contents", "attachments", "changes"} <= kinds
    situation(life)
    if situation is of_another_cluster:
        changed = list(elsewhere(attacker, rows))
        rows = {name: [row for family, row in changed if family == name] for name in rows}
    everything = [row for found in rows.values() for row in found]
    attacker.work(everything)
    before, wrong, tried = state(life), [], {}
    for user in USERS:
        for family, found in {**rows, "all": everything}.items():
            if not found or not attacker.put_back(user, found):
                continue
            attacker.work(everything)
            tried.setdefault(family, set()).add(user)
            if changes := differences(before, state(life)):
                wrong.append((family, user, changes))
                before = state(life)
            attacker.tidy(everything)
    assert wrong == []
    allowed = {user for users in tried.values() for user in users}
    assert allowed == {"watcher", "worker", "operator"}
    assert all(users >= {"worker", "operator"} for users in tried.values()), tried
    assert attacker.copies
    attacker.make_copies_again()
    attacker.put_back("operator", everything)
    attacker.work(everything)
    assert differences(before, state(life)) == {}, "with the attempts' ConfigMaps"


def test_what_is_put_back_during_its_attempt_doubles_nothing(fleet, life, driver):
    rounds = []

    def put_back(attacker):
        rows = [row for found in attacker.rows().values() for row in found]
        keys = {Key.parse(key) for *_, key in rows if key}
        if keys and len(rounds) < 3:
            rounds.append(
                [attacker.put_back(one, rows) for one in ("watcher", "worker", "operator")]
            )
            attacker.queue.add(keys)

    taken(fleet, life, put_back)
    assert rounds
    assert all(map(all, rounds))
    assert len(own(life.api, VOLUMES, driver)) == len(driver.volumes())
    listed = {
        one["status"]["snapshotHandle"]
        for one in life.api.items(CONTENTS)
        if one["spec"]["driver"] == driver.name
    }
    wait_until(lambda: set(driver.snapshots()) == listed, 30, "each snapshot has its content")
