"""The catalog is fresh or incomplete, never stale, also after etcd was restored."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.support.taking import due_keys
from tests.support.versioned_api import VersionedApi
from tests.support.waiting import wait_until
from watcher import history, keeper
from watcher.run import Watcher
from workers.errors import CatalogIncomplete
from workers.kube.client import KubeClient
from workers.queue.catalog import CatalogReader, CatalogWriter
from workers.queue.catalogkinds import KIND_ATTACHMENTS, KIND_CLASSES, KIND_CSINODES, KIND_NODES
from workers.queue.clock import read_clock
from workers.queue.intents import IntentStore
from workers.queue.names import NAMES
from workers.queue.registry import DriverRegistry
from workers.queue.workqueue import WorkQueue

DRIVER = "drv.example.org"
VOLUMES = "/api/v1/persistentvolumes"
CLAIMS = "/api/v1/persistentvolumeclaims"
NODES = "/api/v1/nodes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
PATHS = (VOLUMES, CLAIMS, NODES, CLASSES, CSI_NODES, ATTACHMENTS)
KINDS = {path.rsplit("/", 1)[-1] for path in PATHS}


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(keeper, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(history, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(history, "SECOND_LOOK_SECONDS", 0.1)


class Scene:
    """One API server, one Redis, several watchers, and a worker that takes keys."""

    def __init__(self, api, redis_client):
        self.api = api
        self.redis = redis_client
        self.worker = WorkQueue(redis_client, publish=lambda _: None)
        self.worker.register_process()
        record = {
            "name": DRIVER,
            "queue_name": DRIVER,
            "topology": True,
            "plugin_capabilities": ["CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS"],
            "controller_capabilities": ["CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"],
        }
        DriverRegistry(redis_client).register(DRIVER, record, ttl_seconds=600)
        for kind in ("claims", "volumes", "cloning"):
            self.worker.set_limits(f"{kind}|{DRIVER}", 10)
        self.watchers = []

    def start(self, *, is_synced=True):
        watcher = Watcher(
            KubeClient.from_settings(master=self.api.url),
            queue=WorkQueue(self.redis, publish=lambda _: None),
            catalog=CatalogWriter(self.redis),
            registry=DriverRegistry(self.redis),
            intents=IntentStore(self.redis),
            namespace="fleet",
        )
        self.watchers.append(watcher)
        watcher.start()
        if is_synced:
            wait_until(
                lambda: watcher.is_synced and watcher.reflectors.keys() >= KINDS, 20, "synced"
            )
        return watcher

    def stop_all(self):
        for watcher in self.watchers:
            watcher.stop()
        self.watchers.clear()

    def volume(self, name, phase="Bound"):
        self.api.put(
            VOLUMES,
            name,
            metadata={
                "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
                "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
            },
            spec={
                "csi": {"driver": DRIVER, "volumeHandle": f"handle-{name}"},
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {"namespace": "ns", "name": "c", "uid": "cu"},
                "storageClassName": "gold",
            },
            status={"phase": phase},
        )

    def attach(self, name, volume, node="node-a"):
        self.api.put(
            ATTACHMENTS,
            name,
            spec={
                "attacher": DRIVER,
                "nodeName": node,
                "source": {"persistentVolumeName": volume},
            },
            status={"attached": True},
        )

    def storage_class(self, name, **parameters):
        self.api.put(CLASSES, name, provisioner=DRIVER, parameters=parameters)

    def attachment(self, volume):
        """Return what DeleteVolume's check reads: "unknown" while the catalog is not complete."""
        try:
            return CatalogReader(self.redis).attachment(volume)
        except CatalogIncomplete:
            return "unknown"

    def all(self, kind):
        with suppress(CatalogIncomplete):
            return CatalogReader(self.redis).all(kind)
        return None

    def is_due(self, name):
        self.worker.heartbeat()
        self.worker.pump()
        return any(name in key.text for key in due_keys(self.redis))

    def wait_for_attachment(self, volume, expected):
        wait_until(lambda: self.attachment(volume) == expected, 20, f"{volume}: {expected}")


@pytest.fixture
def scene(redis_client):
    with VersionedApi() as api:
        scene = Scene(api, redis_client)
        yield scene
        scene.stop_all()


@pytest.mark.parametrize("plural", ["volumeattachments", "storageclasses", "csinodes", "nodes"])
def test_no_key_is_sent_before_each_kind_it_rests_on_was_listed(scene, plural):
    """A restarted watcher sends no key before it has listed each kind that the key depends on.

    The catalog does not have the changes made meanwhile.
    """
    scene.volume("pv-1")
    for _ in range(2):
        scene.start()
    scene.stop_all()
    scene.attach("va-1", "pv-1")
    scene.volume("pv-1", "Released")
    scene.api.held[plural].clear()
    watchers = [scene.start(is_synced=False) for _ in range(2)]
    for watcher in watchers:
        others = watcher.reflectors
        wait_until(
            lambda others=others: (
                others.keys() >= KINDS
                and all(one.health.lists for name, one in others.items() if name != plural)
            ),
            20,
            "all other kinds are listed",
        )
        wait_until(lambda watcher=watcher: watcher.outbox.is_idle, 10, "all else is sent")
    assert not scene.is_due("pv-1")
    scene.api.held[plural].set()
    wait_until(lambda: scene.is_due("pv-1"), 20, "the volume's key is due")
    assert scene.attachment("pv-1") == {"va-1": "node-a"}


def test_one_watcher_that_lists_slowly_holds_back_nobody_else(scene):
    """A watcher that lists slowly does not stop the other one, which has listed all kinds."""
    scene.start()
    scene.api.held["volumeattachments"].clear()
    scene.start(is_synced=False)
    scene.volume("pv-1", "Released")
    wait_until(lambda: scene.is_due("pv-1"), 20, "the volume's key is due")


def test_a_catalog_that_nobody_follows_proves_nothing(scene):
    """A catalog without a watcher is incomplete after 30 s,
    also for keys that were queued when the last watcher ended.
    """
    scene.start()
    assert scene.attachment("pv-1") is None
    scene.stop_all()
    end = NAMES["fresh"].full
    left = int(scene.redis.hget(end, KIND_ATTACHMENTS)) - _now_ms(scene.redis)
    assert 0 < left <= 30_000
    scene.redis.hset(end, KIND_ATTACHMENTS, _now_ms(scene.redis))  # simulates half a minute
    assert scene.attachment("pv-1") == "unknown"
    scene.start()
    scene.wait_for_attachment("pv-1", None)


def _now_ms(redis_client):
    return read_clock(redis_client).now_ms


def future(scene):
    """Fill a cluster, make a backup and change the cluster. Return the watcher and the backup."""
    scene.storage_class("gold", tier="old")
    scene.storage_class("lead", tier="same")
    scene.attach("va-1", "pv-1")
    scene.api.put(NODES, "node-a", metadata={"labels": {"zone": "old"}})
    scene.api.put(CSI_NODES, "node-a", spec={"drivers": None})
    watcher = scene.start()
    backup = scene.api.backup()
    scene.api.pass_time(500)
    scene.api.drop(ATTACHMENTS, "va-1")
    scene.attach("va-9", "pv-9", "node-b")
    scene.api.drop(CLASSES, "gold")
    scene.storage_class("silver")
    scene.storage_class("lead", tier="changed")
    scene.api.put(NODES, "node-a", metadata={"labels": {"zone": "new"}})
    scene.api.put(NODES, "node-z")
    scene.wait_for_attachment("pv-9", {"va-9": "node-b"})
    wait_until(lambda: "node-z" in (scene.all(KIND_NODES) or ()), 10, "the future is known")
    return watcher, backup


def is_as_restored(scene):
    classes, nodes = scene.all(KIND_CLASSES), scene.all(KIND_NODES)
    return (
        classes is not None
        and {name: one["parameters"] for name, one in classes.items()}
        == {"gold": {"tier": "old"}, "lead": {"tier": "same"}}
        and nodes == {"node-a": {"zone": "old"}}
        and scene.all(KIND_CSINODES) == {"node-a": {}}
        and scene.attachment("pv-1") == {"va-1": "node-a"}
        and scene.attachment("pv-9") is None
    )


@pytest.mark.parametrize("goes_on", ["restarted", "watches end", "watches stay open and silent"])
def test_what_was_learnt_of_a_future_that_is_gone_is_forgotten(scene, goes_on):
    """After a restore of etcd, the catalog forgets the
    lost history without an action of the operator.
    """
    _, backup = future(scene)
    if goes_on == "restarted":
        scene.stop_all()
    scene.api.restore(backup)
    if goes_on == "restarted":
        for _ in range(2):
            scene.start(is_synced=False)
    elif goes_on == "watches end":
        scene.api.drop_watches()
    wait_until(lambda: is_as_restored(scene), 20, "the catalog is that of the present")
    # Changes from now on have lower versions than the changes seen before.
    scene.storage_class("gold", tier="newest")
    wait_until(
        lambda: (
            ((scene.all(KIND_CLASSES) or {}).get("gold") or {}).get("parameters")
            == {"tier": "newest"}
        ),
        20,
        "a later change is seen",
    )
    scene.volume("pv-2", "Released")
    wait_until(lambda: scene.is_due("pv-2"), 60, "a key of the present")


def test_a_second_restore_before_the_first_is_noticed(scene):
    """The catalog is correct after two restores in a row, of which the second is older."""
    scene.start()
    _, backup = future(scene)
    later = scene.api.backup()
    scene.api.pass_time(1000)
    scene.attach("va-10", "pv-10")
    scene.wait_for_attachment("pv-10", {"va-10": "node-a"})
    scene.api.restore(later)
    scene.api.restore(backup)
    wait_until(lambda: is_as_restored(scene), 20, "the catalog is that of the older backup")
    assert scene.attachment("pv-10") is None


@pytest.mark.parametrize("plural", ["volumeattachments", "storageclasses"])
def test_a_restore_while_a_list_runs(scene, plural):
    """The catalog is correct if one kind was listed from
    the restored etcd, and the others from the former one.
    """
    _, backup = future(scene)
    scene.api.held[plural].clear()
    scene.start(is_synced=False)
    others = KINDS - {plural}
    reflectors = scene.watchers[-1].reflectors
    wait_until(
        lambda: reflectors.keys() >= KINDS and all(reflectors[one].health.lists for one in others),
        20,
        "all other kinds are listed",
    )
    scene.api.restore(backup)
    scene.api.held[plural].set()
    wait_until(lambda: is_as_restored(scene), 20, "the catalog is that of the present")


def test_a_restore_and_an_empty_redis_at_once(scene):
    """The catalog is correct after a restore of the whole site:
    etcd is set back and Redis loses its data while watchers run.
    """
    scene.start()
    _, backup = future(scene)
    scene.api.restore(backup)
    scene.redis.flushall()
    wait_until(lambda: is_as_restored(scene), 30, "the catalog is that of the present")
    scene.storage_class("lead", tier="newest")
    wait_until(
        lambda: (
            ((scene.all(KIND_CLASSES) or {}).get("lead") or {}).get("parameters")
            == {"tier": "newest"}
        ),
        20,
        "a later change is seen",
    )


def test_two_watchers_end_one_history_once(scene):
    """Two watchers that notice a restore end the history once.

    The second one finds a new epoch and only lists its own kinds.
    """
    scene.start()
    _, backup = future(scene)
    lives = set()
    scene.api.restore(backup)
    epoch = NAMES["epoch"].full

    def is_settled():
        lives.add(scene.redis.get(epoch))
        listed = all(
            one.health.version and int(one.health.version) <= scene.api.version
            for watcher in scene.watchers
            for one in watcher.reflectors.values()
        )
        known = {watcher.keeper.epoch.encode() for watcher in scene.watchers}
        return listed and is_as_restored(scene) and known == {scene.redis.get(epoch)}

    before = scene.redis.get(epoch)
    wait_until(is_settled, 30, "both watch the present", interval_seconds=0.01)
    looks = scene.api.looks
    wait_until(lambda: scene.api.looks > looks + 40, 30, "both look at each kind again")
    lives.add(scene.redis.get(epoch))
    assert len(lives - {None, before}) == 1


def test_entries_of_a_faster_watcher_are_no_future(scene):
    """A list that is older than the other watcher's writes does not end the history."""
    scene.start()
    before = scene.redis.get(NAMES["epoch"].full)
    writer = CatalogWriter(scene.redis)
    writer.epoch()
    old = str(scene.api.version)
    scene.attach("va-1", "pv-1")
    scene.wait_for_attachment("pv-1", {"va-1": "node-a"})
    assert writer.replace(KIND_ATTACHMENTS, [], old) == str(scene.api.version)
    scene.watchers[0].history.compare("volumeattachments", str(scene.api.version))
    assert scene.redis.get(NAMES["epoch"].full) == before
    assert scene.attachment("pv-1") == {"va-1": "node-a"}


def test_tombstones_of_an_hour_ago_go(scene):
    """Tombstones are removed after an hour.

    A healthy watcher never lists again, so no list removes them.
    """
    watcher = scene.start()
    for number in range(300):
        scene.attach(f"va-{number}", f"pv-{number}")
    scene.wait_for_attachment("pv-299", {"va-299": "node-a"})
    for number in range(200):
        scene.api.drop(ATTACHMENTS, f"va-{number}")
    scene.wait_for_attachment("pv-199", None)
    entries, changes = NAMES["catalog"].full, NAMES["changes"].full
    assert scene.redis.hlen(entries + KIND_ATTACHMENTS) == 300
    watcher._prune()
    scene.api.drop(ATTACHMENTS, "va-200")
    scene.wait_for_attachment("pv-200", None)
    watcher._prune()  # after an hour, only older tombstones are removed
    assert scene.redis.hlen(entries + KIND_ATTACHMENTS) == 100
    assert scene.redis.zcard(changes + KIND_ATTACHMENTS) == 100
    scene.wait_for_attachment("pv-250", {"va-250": "node-a"})
    watcher._prune()
    assert scene.redis.hlen(entries + KIND_ATTACHMENTS) == 99
