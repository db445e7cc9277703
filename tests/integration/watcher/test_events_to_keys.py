"""Events of a real API server become keys and catalog entries in a real Redis."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.waiting import wait_until
from workers.constants import (
    ANN_SELECTED_NODE,
    ANN_STORAGE_PROVISIONER,
    FINALIZER_CLONE_SOURCE,
    FINALIZER_VOLUME,
    LABEL_INTENT,
)
from workers.kube import paths
from workers.kube.client import MERGE_PATCH
from workers.queue.copies import FIELD_RECORD, NAME_PREFIX


def claim_text(cluster, name):
    return f"claims|{cluster.driver}|{cluster.namespace}/{name}|"


def annotate(cluster, name, **annotations):
    """Set annotations, as the volume binder and the scheduler do."""
    path = paths.CLAIMS.path(name, namespace=cluster.namespace)
    body = {"metadata": {"annotations": annotations}}
    return cluster.api.client.patch(path, body, MERGE_PATCH)


def knows(watcher, name):
    """Return True if the rules know the object; other tests may share the cluster."""
    table = watcher.machine.rules("provisioner")
    return any(
        name in (entry.name, entry.uid)
        for entry in [*table._claims.values(), *table._volumes.values()]
    )


def test_immediate_claim_is_due_at_once(scene, cluster):
    """An immediate claim is due at once: in well under 100 ms
    on an idle machine, with a bound of 2 s for loaded machines.
    """
    scene.register()
    scene.start_watcher()
    storage_class = cluster.storage_class("fast")
    wait_until(lambda: storage_class in scene.catalog.all("classes"), 10, "class in the catalog")
    claim = cluster.claim("c1", storage_class)
    annotate(cluster, "c1", **{ANN_STORAGE_PROVISIONER: cluster.driver})
    started = time.monotonic()
    key = scene.wait_until_due(claim_text(cluster, "c1"))
    assert key.uid == claim["metadata"]["uid"]
    assert time.monotonic() - started < 2


def test_c016_late_binding_claim_waits_for_its_node(scene, cluster):
    scene.register()
    watcher = scene.start_watcher()
    storage_class = cluster.storage_class("late", "WaitForFirstConsumer")
    classes = watcher.machine.rules("provisioner")._classes
    wait_until(lambda: storage_class in classes, 10, "class seen")
    uid = cluster.claim("c1", storage_class)["metadata"]["uid"]
    annotate(cluster, "c1", **{ANN_STORAGE_PROVISIONER: cluster.driver})
    wait_until(lambda: knows(watcher, uid), 10, "claim seen")
    assert scene.due_for(cluster.namespace) == []
    annotate(cluster, "c1", **{ANN_SELECTED_NODE: "node-1"})
    scene.wait_until_due(claim_text(cluster, "c1"))


def test_driver_registered_later_gets_its_claims(scene, cluster):
    watcher = scene.start_watcher()
    uid = cluster.claim("c1", cluster.storage_class("fast"))["metadata"]["uid"]
    annotate(cluster, "c1", **{ANN_STORAGE_PROVISIONER: cluster.driver})
    wait_until(lambda: knows(watcher, uid), 10, "claim seen")
    assert scene.due_for(cluster.namespace) == []
    scene.register()
    scene.wait_until_due(claim_text(cluster, "c1"))


def test_static_volume_is_added_when_its_policy_needs_the_finalizer_off(scene, cluster):
    """C-072: a live PV is added when its policy requires the removal of the finalizer.

    C-082: the rules forget the settled volume.
    """
    scene.register()
    watcher = scene.start_watcher()
    volume = cluster.volume(
        "pv",
        persistentVolumeReclaimPolicy="Retain",
    )
    name = volume["metadata"]["name"]
    assert not knows(watcher, name)
    uid = volume["metadata"]["uid"]
    cluster.api.add_volume_finalizer(name, FINALIZER_VOLUME, uid=uid)
    scene.wait_until_due(f"volumes|{cluster.driver}|{name}|")
    cluster.api.remove_volume_finalizer(name, FINALIZER_VOLUME, uid=uid)
    wait_until(lambda: not knows(watcher, name), 10, "volume settled")


def test_deleted_clone_source_is_added(scene, cluster):
    """C-120, CL-005: a deleted clone source is added while its finalizer holds up the deletion."""
    scene.register(controller_capabilities=["CLONE_VOLUME"])
    scene.start_watcher()
    cluster.claim("src", cluster.storage_class("fast"))
    path = paths.CLAIMS.path("src", namespace=cluster.namespace)
    cluster.api.client.patch(
        path, {"metadata": {"finalizers": [FINALIZER_CLONE_SOURCE]}}, MERGE_PATCH
    )
    cluster.api.client.delete(path)
    scene.wait_until_due(f"cloning|{cluster.driver}|{cluster.namespace}/src|")


def test_topology_and_attachments_reach_the_catalog(scene, cluster):
    """F-034: nodes and attachments are cached only if a driver needs them.

    A deletion reads attachments by volume (S-007).
    """
    scene.start_watcher()
    scene.register(topology=True, controller_capabilities=["PUBLISH_UNPUBLISH_VOLUME"])
    node = f"{cluster.namespace}-n1"
    cluster.create(paths.NODES, node, metadata={"labels": {"zone": "a"}})
    driver = {"name": cluster.driver, "nodeID": "n1", "topologyKeys": ["zone"]}
    cluster.create(paths.CSI_NODES, node, spec={"drivers": [driver]})
    attachment = f"{cluster.namespace}-va"
    spec = {
        "attacher": cluster.driver,
        "nodeName": node,
        "source": {"persistentVolumeName": "pv-x"},
    }
    cluster.create(paths.ATTACHMENTS, attachment, spec=spec)

    def seen():
        nodes, csi_nodes = scene.catalog.all("nodes"), scene.catalog.all("csinodes")
        return (
            nodes.get(node, {}).get("zone") == "a"
            and csi_nodes.get(node) == {cluster.driver: ["zone"]}
            and scene.catalog.attachment("pv-x") == {attachment: node}
        )

    wait_until(seen, 15, "catalog has node, keys and attachment")
    cluster.api.delete(paths.ATTACHMENTS, attachment)
    wait_until(lambda: scene.catalog.attachment("pv-x") is None, 10, "attachment is gone")


def test_c148_flushed_redis_is_filled_again(scene, cluster):
    """C-148: catalog, undecided keys and intents are restored from API objects alone."""
    scene.register()
    scene.start_watcher()
    storage_class = cluster.storage_class("fast")
    cluster.claim("c1", storage_class)
    annotate(cluster, "c1", **{ANN_STORAGE_PROVISIONER: cluster.driver})
    scene.wait_until_due(claim_text(cluster, "c1"))
    lost = f"claims|{cluster.driver}|{cluster.namespace}/deleted|u-lost"
    cluster.create(
        paths.CONFIG_MAPS,
        f"{NAME_PREFIX}pvc-u-lost",
        metadata={"labels": {LABEL_INTENT: "true"}},
        data={FIELD_RECORD: json.dumps({"key": lost, "stage": "calling"})},
    )
    scene.redis.flushall()
    scene.register()
    scene.wait_until_due(claim_text(cluster, "c1"))
    scene.wait_until_due(lost)
    assert scene.intents.of(cluster.driver).get("pvc-u-lost") == {"key": lost, "stage": "calling"}
    wait_until(lambda: storage_class in scene.catalog.all("classes"), 10, "class is back")


def test_c150_restarted_watcher_adds_only_undecided_objects(scene, cluster):
    """C-150: a restarted watcher adds only undecided objects."""
    scene.register()
    first = scene.start_watcher()
    storage_class = cluster.storage_class("fast")
    for name in ("settled", "waiting"):
        cluster.claim(name, storage_class)
        annotate(cluster, name, **{ANN_STORAGE_PROVISIONER: cluster.driver})
        scene.finish(scene.wait_until_due(claim_text(cluster, name)))
    path = paths.CLAIMS.path("settled", namespace=cluster.namespace)
    cluster.api.client.patch(path, {"spec": {"volumeName": "some-pv"}}, MERGE_PATCH)
    first.stop()
    scene.start_watcher()
    scene.wait_until_due(claim_text(cluster, "waiting"))
    assert scene.due_for(claim_text(cluster, "settled")) == []


def test_two_watchers_cause_one_key(scene, cluster):
    """G3: two active watchers cause one key, because adding a key that waits changes nothing."""
    scene.register()
    storage_class = cluster.storage_class("fast")
    watchers = [scene.start_watcher(), scene.start_watcher()]
    uid = cluster.claim("c1", storage_class)["metadata"]["uid"]
    annotate(cluster, "c1", **{ANN_STORAGE_PROVISIONER: cluster.driver})
    scene.wait_until_due(claim_text(cluster, "c1"))
    for watcher in watchers:
        wait_until(
            lambda watcher=watcher: knows(watcher, uid) and watcher.outbox.is_idle,
            10,
            "both watchers saw the claim",
        )
    assert len(scene.due_for(claim_text(cluster, "c1"))) == 1


@pytest.mark.parametrize("keeps_data", [True, False])
def test_c147_restarted_redis_gets_what_happened_meanwhile(
    mortal_scene, own_redis, cluster, keeps_data
):
    """C-147, C-148: no event during an outage is lost, with or without the data."""
    scene = mortal_scene
    scene.register()
    watcher = scene.start_watcher()
    storage_class = cluster.storage_class("fast")
    wait_until(lambda: storage_class in scene.catalog.all("classes"), 10, "class in the catalog")
    own_redis.kill()
    if not keeps_data:
        for path in own_redis.directory.glob("appendonlydir/*"):
            path.unlink()
    cluster.claim("c1", storage_class)
    annotate(cluster, "c1", **{ANN_STORAGE_PROVISIONER: cluster.driver})
    wait_until(lambda: watcher.is_down, 20, "outage noticed")
    own_redis.start()
    if not keeps_data:
        wait_until(lambda: scene.register() is None, 10, "driver registered again")
    scene.wait_until_due(claim_text(cluster, "c1"), timeout_seconds=20)


def test_stop_is_quick_while_watches_are_open(scene):
    watcher = scene.start_watcher()
    started = time.monotonic()
    watcher.stop()
    assert time.monotonic() - started < 2
    assert not any(loop.is_alive for loop in watcher.loops.values())
