"""Capacity publishing with a real Redis: which objects are written, when, and when not."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest

from csi_client.errors import CsiError
from tests.support.capacity_world import CAPACITIES, NAMESPACE, CapacityWorld
from tests.support.fake_cluster import DRIVER
from workers.config.settings import KubeSettings
from workers.controllers.capacity.items import Obsolete
from workers.controllers.provisioner.clusters import Clusters
from workers.errors import CatalogIncomplete, QueueUnavailable, State
from workers.observability.metrics import Metrics
from workers.queue.capacities import CapacityStore
from workers.queue.catalog import CACHED_KINDS, CatalogReader, CatalogWriter
from workers.queue.keys import capacity_key
from workers.queue.names import NAMES

GIB = 2**30


@pytest.fixture
def world(redis_client):
    world = CapacityWorld(redis_client)
    world.add_class("fast")
    world.set_zones("z1")
    return world


def failure():
    return CsiError(13, "broken", rpc="GetCapacity")


def test_c087_nothing_wanted_nothing_published(redis_client):
    """Without classes or segments there is no call and no object."""
    world = CapacityWorld(redis_client)
    world.tick()
    assert (world.objects(), world.client.requests) == ([], [])


def test_c088_one_object_with_labels_selector_and_capacity(world):
    world.tick()
    (found,) = world.objects()
    assert found["metadata"]["labels"] == {
        "csi.storage.k8s.io/drivername": DRIVER,
        "csi.storage.k8s.io/managed-by": "external-provisioner",
    }
    assert found["nodeTopology"] == {"matchLabels": {"zone": "z1"}}
    assert (found["capacity"], found["storageClassName"]) == ("1Gi", "fast")
    assert "maximumVolumeSize" not in found
    assert "ownerReferences" not in found["metadata"]


def test_the_first_poll_begins_the_period(world):
    """CAP-030: the first poll runs at the start and is not repeated at the first tick."""
    world.publishing.start([world.driver])
    world.settle()
    assert len(world.client.requests) == 1
    world.tick()
    assert len(world.client.requests) == 1


def test_c089_maximum_size_comes_and_goes(world):
    world.client.maximum = GIB
    world.poll()
    assert world.objects()[0]["maximumVolumeSize"] == "1Gi"
    world.client.maximum = None
    world.poll()
    assert "maximumVolumeSize" not in world.objects()[0]


def test_c091_immediate_classes_by_flag(redis_client):
    for flag, pairs in ((False, []), (True, [("now", "z1")])):
        redis_client.flushall()
        world = CapacityWorld(redis_client, for_immediate_binding=flag)
        world.add_class("now", volumeBindingMode="Immediate")
        world.set_zones("z1")
        world.tick()
        assert world.pairs() == pairs


def test_c092_c101_unchanged_value_is_not_written(world):
    """Five polls cause five calls and no write."""
    world.add_object("csisc-old", "fast", "z1")
    for _ in range(5):
        world.poll()
    assert len(world.client.requests) == 5
    assert world.kube.writes == []


def test_c093_other_value_is_one_update_of_the_same_object(world):
    old = world.add_object("csisc-old", "fast", "z1")
    world.client.free = {"z1": 2 * GIB}
    world.poll()
    (found,) = world.objects()
    assert (found["metadata"]["uid"], found["capacity"]) == (old["metadata"]["uid"], "2Gi")
    assert len(world.kube.writes) == 1


def test_c094_c110_owner_of_the_pod_is_appended(redis_client):
    world = CapacityWorld(redis_client, owner_level=0, pod_name="prov")
    world.kube.add("pods", {"metadata": {"name": "prov", "namespace": NAMESPACE, "uid": "pod-1"}})
    world.kube.get_by_kind = lambda _api, _kind, namespace, name: world.kube._get(
        "pods", namespace, name, ""
    )
    world.kube.is_served = lambda _resource: True
    world.publishing.prepare()
    world.add_class("fast")
    world.set_zones("z1")
    world.add_object("csisc-old", "fast", "z1")
    world.poll()
    (reference,) = world.objects()[0]["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["uid"], reference["controller"]) == ("Pod", "pod-1", True)


def test_c095_c096_obsolete_goes_foreign_stays(world):
    """An object of a missing class or segment is deleted; a foreign or unlabelled object stays."""
    world.add_object("no-class", "nosuch", "z1")
    world.add_object("no-zone", "fast", "z9")
    world.add_object("foreign", "nosuch", "z1", metadata={"labels": {"a": "b"}})
    world.poll()
    assert {"no-class", "no-zone"}.isdisjoint(world.kube.kind(CAPACITIES))
    assert "foreign" in world.kube.kind(CAPACITIES)


FOREIGN = {
    "without our labels": {"labels": {"a": "b"}},
    "of another driver": {
        "labels": {
            "csi.storage.k8s.io/drivername": "other.example.org",
            "csi.storage.k8s.io/managed-by": "external-provisioner",
        }
    },
}


@pytest.mark.parametrize("metadata", FOREIGN.values(), ids=list(FOREIGN))
def test_a_record_in_redis_deletes_no_foreign_object(world, metadata):
    """An object of another manager is not deleted, even if a record in Redis names it.

    Capacity records are not signed, so the live object decides.
    """
    found = world.add_object("foreign", "fast", "z1", metadata=metadata)
    world.store.replace(DRIVER, {}, {}, {"foreign": found["metadata"]["uid"]})
    world.queue.add([capacity_key(DRIVER, Obsolete("foreign").text)])
    world.settle()
    assert world.kube.writes == []
    assert world.store.obsolete_uid(DRIVER, "foreign") is None


@pytest.mark.parametrize("metadata", FOREIGN.values(), ids=list(FOREIGN))
@pytest.mark.parametrize("is_as_ours", [False, True], ids=["as it is", "with our labels"])
def test_a_record_in_redis_changes_no_foreign_object(world, metadata, is_as_ours):
    world.tick()
    (item,), own = world.store.all(DRIVER), world.objects()[0]["metadata"]
    foreign = world.add_object("foreign", "fast", "z1", metadata=metadata)
    before = deepcopy(world.kube.kind(CAPACITIES)["foreign"])
    if is_as_ours:
        foreign["metadata"]["labels"] = own["labels"]
    world.store.put(DRIVER, {item: foreign})
    world.client.free = {"z1": 7 * GIB}
    world.queue.add([capacity_key(DRIVER, item)])
    world.settle()
    assert world.kube.kind(CAPACITIES)["foreign"] == before
    world.poll()
    assert {one["metadata"]["name"]: one["capacity"] for one in world.objects()} == {
        "foreign": "1Gi",
        own["name"]: "7Gi",
    }


@pytest.mark.parametrize("is_made_again", [False, True])
def test_old_records_of_capacity_leave_the_objects_as_they_are(world, is_made_again):
    """Restored old records change no object.

    The records contain the object's past deletion; the object exists again, or another one replaces
    it.
    """
    world.tick()
    (metadata,) = [one["metadata"] for one in world.objects()]
    name, objects = metadata["name"], world.store.all(DRIVER)
    world.store.turn(DRIVER, qps=1, burst=1)
    world.store.replace(DRIVER, objects, objects, {name: metadata["uid"]})
    old = {key: world.redis.dump(key) for key in world.redis.scan_iter("csifleet:capacity*")}
    families = {key.decode().split(":")[1] for key in old}
    assert families == {one for one in NAMES if one.startswith("capacity")}
    if is_made_again:
        world.kube.drop(CAPACITIES, name, NAMESPACE)
    world.client.free = {"z1": 7 * GIB}
    world.poll()
    before = world.objects()
    world.kube.writes.clear()
    for key, value in old.items():
        world.redis.restore(key, 0, value, replace=True)
        world.queue.add([capacity_key(DRIVER, Obsolete(name).text)])
        world.poll()
        assert world.objects() == before
    assert world.kube.writes == []


def test_c097_two_by_two(world):
    world.add_class("slow")
    world.set_zones("z1", "z2")
    world.add_object("valid", "fast", "z1")
    world.add_object("obsolete", "fast", "z3")
    world.poll()
    assert world.pairs() == [("fast", "z1"), ("fast", "z2"), ("slow", "z1"), ("slow", "z2")]
    assert sorted(call for call, _ in world.kube.writes) == ["create"] * 3 + ["delete"]


def test_c098_deleted_object_is_made_again_at_once(world):
    world.tick()
    (found,) = world.objects()
    world.kube.drop(CAPACITIES, found["metadata"]["name"], NAMESPACE)
    world.queue.add([capacity_key(DRIVER, f"gone:{found['metadata']['uid']}")])
    world.settle()
    assert world.pairs() == [("fast", "z1")]


def test_c098_own_deletion_makes_nothing_again(world):
    old = world.add_object("no-zone", "fast", "z9")
    world.poll()
    world.clear()
    world.queue.add([capacity_key(DRIVER, f"gone:{old['metadata']['uid']}")])
    world.settle()
    assert (world.kube.writes, world.client.requests) == ([], [])


def test_c099_c100_of_two_objects_one_stays(world):
    world.add_object("b", "fast", "z1", metadata={"creationTimestamp": "2026-01-02T00:00:00Z"})
    world.add_object("a", "fast", "z1", metadata={"creationTimestamp": "2026-01-01T00:00:00Z"})
    world.poll()
    world.poll()
    assert list(world.kube.kind(CAPACITIES)) == ["a"]


def test_c100_copy_that_sorts_before_the_known_object(world):
    """Of two objects for one item, the plan keeps one and deletes the other, even the known one."""
    world.tick()
    (known,) = world.objects()
    world.client.free = {"z1": 2 * GIB}
    world.poll()
    world.add_object("aaa", "fast", "z1", metadata={"creationTimestamp": ""})
    known = world.kube.kind(CAPACITIES)[known["metadata"]["name"]]
    world.kube.add(CAPACITIES, known | {"capacity": "3Gi"})
    world.poll()
    world.poll()
    assert [one["metadata"]["name"] for one in world.objects()] == ["aaa"]
    assert [one["capacity"] for one in world.objects()] == ["2Gi"]


def test_c102_segments_come_and_go_without_a_poll(world):
    world.tick()
    world.set_zones("z2")
    world.tick()
    assert world.pairs() == [("fast", "z2")]


def test_c104_class_made_anew_is_asked_anew(world):
    """A class that was created again is polled, because a new uid can mean other parameters.

    The other classes are not polled.
    """
    world.add_class("slow")
    world.tick()
    world.clear()
    world.add_class("fast", uid="second", parameters={"tier": "new"})
    world.tick()
    assert [dict(one.parameters) for one in world.client.requests] == [{"tier": "new"}]


@pytest.mark.parametrize(
    ("outcome", "zones"),
    [
        pytest.param(State.FINISHED, {"z1", "z2"}, id="C-105 failure refreshes the class"),
        pytest.param(State.NO_CHANGE, set(), id="C-105 no change refreshes nothing"),
        pytest.param({"spec": {}}, {"z1", "z2"}, id="C-105 volume without affinity"),
        pytest.param(
            {
                "spec": {
                    "nodeAffinity": {
                        "required": {
                            "nodeSelectorTerms": [
                                {
                                    "matchExpressions": [
                                        {"key": "zone", "operator": "In", "values": ["z2"]}
                                    ]
                                }
                            ]
                        }
                    }
                }
            },
            {"z2"},
            id="C-105 volume with affinity",
        ),
    ],
)
def test_attempts_refresh_their_items(world, redis_client, outcome, zones):
    """CAP-030: each item gets one call, however many volumes were created (M-014)."""
    world.set_zones("z1", "z2")
    world.tick()
    world.clear()
    for _ in range(3):
        world.publishing.provisioned(world.driver, "fast", outcome)
    world.tick()
    assert world.client.requests == []  # the refresh is delayed by a second
    delayed = {one.decode() for one, _ in redis_client.zscan_iter("csifleet:delayed")}
    assert delayed == {f"capacity|{DRIVER}|fast/zone={zone}|" for zone in zones}


def test_c105_deletion_refreshes_by_affinity_only(world, redis_client):
    world.tick()
    world.publishing.deleted(world.driver, {"spec": {}})
    world.tick()
    assert redis_client.zcard("csifleet:delayed") == 0


def test_a_change_waits_for_a_catalog_that_is_not_complete(world, redis_client):
    """CAP-030: after Redis lost its data, the refresh waits until the watcher has listed again."""
    world.tick()
    known = world.publishing.wanted

    def unknown(*_args):
        raise CatalogIncomplete("the watcher has not written all classes yet")

    world.publishing.provisioned(world.driver, "fast", State.FINISHED)
    world.publishing.wanted = unknown
    world.tick()
    assert redis_client.zcard("csifleet:delayed") == 0
    world.publishing.wanted = known
    world.tick()
    assert redis_client.zcard("csifleet:delayed") == 1


def test_a_change_waits_for_redis(world, redis_client):
    """CAP-030: a refresh that Redis did not accept is repeated at the next tick."""
    world.tick()
    world.publishing.provisioned(world.driver, "fast", State.FINISHED)
    failing = world.publishing.store.failing

    def away(_keys):
        raise QueueUnavailable("away")

    world.publishing.store.failing = away
    with pytest.raises(QueueUnavailable):
        world.tick()
    world.publishing.store.failing = failing
    world.tick()
    assert redis_client.zcard("csifleet:delayed") == 1


def test_c106_failing_item_has_one_attempt_and_keeps_its_value(world, redis_client):
    """A failing item has one retry, and its old value stays.

    Polls neither shorten the back-off nor start a second retry.
    """
    world.tick()
    world.client.errors = [failure() for _ in range(3)]
    for _ in range(60):
        world.poll()
    assert len(world.client.requests) == 2
    assert redis_client.zcard("csifleet:delayed") == 1
    assert world.objects()[0]["capacity"] == "1Gi"
    assert world.delays == [1.0]


def test_s008_refresh_does_not_shorten_a_back_off(world, redis_client):
    """C-106: a burst of failed claims cannot cause more calls to a failing driver."""
    world.client.errors = [failure()]
    world.tick()
    ((_, due),) = redis_client.zscan_iter("csifleet:delayed")
    redis_client.zadd("csifleet:delayed", {f"capacity|{DRIVER}|fast/zone=z1|": due + 60_000})
    world.publishing.provisioned(world.driver, "fast", State.FINISHED)
    world.tick()
    assert [score for _, score in redis_client.zscan_iter("csifleet:delayed")] == [due + 60_000]


def test_c107_empty_segment_is_adopted_without_churn(world):
    world.set_zones("z1", keys=())
    world.add_object("csisc-old", "fast", "z1", nodeTopology={})
    for _ in range(5):
        world.poll()
    assert world.kube.writes == []
    assert [one["metadata"]["name"] for one in world.objects()] == ["csisc-old"]


def test_c108_conflict_is_read_and_written_once_more(world):
    world.tick()
    (found,) = world.objects()
    world.kube.add(CAPACITIES, found | {"capacity": "7Gi"})
    world.client.free = {"z1": 2 * GIB}
    world.queue.add([capacity_key(DRIVER, "fast/zone=z1")])
    world.settle()
    assert [one["capacity"] for one in world.objects()] == ["2Gi"]
    assert world.delays == []


def test_c109_class_and_segment_gone_together(world):
    world.add_class("slow")
    world.set_zones("z1", "z2")
    world.tick()
    del world.catalog.classes["fast"]
    world.set_zones("z2")
    world.poll()
    assert world.pairs() == [("slow", "z2")]


def test_c109_item_that_is_not_wanted_after_the_call_is_not_made(world):
    def zone_goes():
        world.set_zones("z2")

    world.client.during = zone_goes
    world.tick()
    assert ("fast", "z1") not in world.pairs()


@pytest.mark.parametrize(
    ("size", "text"),
    [
        pytest.param(-1, "1Gi", id="C-116 negative is refused, the object stays"),
        pytest.param(2**63 - 1, str(2**63 - 1), id="C-116 huge is exact"),
    ],
)
def test_extreme_sizes(world, size, text):
    world.tick()
    world.client.free = {"z1": size}
    world.poll()
    assert world.objects()[0]["capacity"] == text


def test_c115_parameters_are_passed_unchanged(world):
    world.add_class("fast", parameters={"csi.storage.k8s.io/fstype": "xfs", "a": "b"})
    world.tick()
    assert dict(world.client.requests[0].parameters) == {
        "csi.storage.k8s.io/fstype": "xfs",
        "a": "b",
    }


def test_c108_lost_redis_doubles_nothing(world, redis_client):
    """After a loss of Redis, no object is created twice.

    The plan adopts csi-provisioner's random object names before any item is written.
    """
    world.add_object("csisc-old", "fast", "z1")
    world.poll()
    redis_client.flushall()
    world.queue.heartbeat()
    world.queue.add([capacity_key(DRIVER, "fast/zone=z1")])
    world.settle()
    assert [one["metadata"]["name"] for one in world.objects()] == ["csisc-old"]


def test_c100_object_that_vanished_is_planned_anew(world):
    world.tick()
    (found,) = world.objects()
    world.kube.drop(CAPACITIES, found["metadata"]["name"], NAMESPACE)
    world.client.free = {"z1": 2 * GIB}
    world.queue.add([capacity_key(DRIVER, "fast/zone=z1")])
    world.settle()
    assert [one["capacity"] for one in world.objects()] == ["2Gi"]


def test_c113_unrelated_label_change_asks_nobody(world):
    world.tick()
    world.clear()
    topology = world.clusters.topology
    nodes = {"node-z1": {"zone": "z1", "color": "blue"}}
    world.clusters.topology = type(topology)({"node-z1": {DRIVER: ["zone"]}}, nodes)
    world.tick()
    assert (world.client.requests, world.kube.writes) == ([], [])


def test_c114_nothing_is_concluded_before_classes_and_nodes_are_known(redis_client, world):
    """Unknown classes and no classes differ: only known absence deletes objects."""
    writer, reader = CatalogWriter(redis_client), CatalogReader(redis_client)
    world.clusters.current = Clusters(reader).current
    world.add_object("csisc-before", "fast", "z1")
    epoch = writer.epoch()
    for complete in ([], CACHED_KINDS[:1], CACHED_KINDS[:2]):
        writer.mark_complete(complete, epoch)
        world.tick()
        world.poll()
        assert (world.client.requests, world.kube.writes) == ([], [])
    writer.mark_complete(CACHED_KINDS, epoch)
    world.tick()
    assert world.kube.writes == [("delete", "csisc-before")]


def test_cap071_the_write_rate_is_the_drivers_over_all_processes(redis_client):
    """CAP-071: two workers together write no faster than one; each waits for its own turn."""
    rate = KubeSettings(capacity_qps=0.001, capacity_burst=2)
    worlds = [CapacityWorld(redis_client, kube=rate) for _ in range(2)]
    for index, one in enumerate(worlds):
        one.add_class("fast")
        one.set_zones(*(f"z{index}{number}" for number in range(2)))
        one.poll()
    waits = [wait for one in worlds for wait in one.waits]
    assert waits[:2] == [0, 0]
    assert [990 < wait <= 1000 for wait in waits[2:3]] == [True]
    assert CapacityStore(redis_client).turn("another", qps=0.001, burst=1) == 0


def test_cap011_the_switch_sends_a_topology_all_the_same(redis_client):
    """CAP-011: the switch sends a topology for a driver without topology too.

    Some drivers relied on the empty topology that csi-provisioner sends.
    """
    for always in (False, True):
        redis_client.flushall()
        world = CapacityWorld(redis_client, always_topology=always)
        world.driver = replace(world.driver, plugin_capabilities=frozenset({"CONTROLLER_SERVICE"}))
        world.add_class("fast")
        world.set_zones("z1", keys=())
        world.tick()
        sent = [request.HasField("accessible_topology") for request in world.client.requests]
        assert sent == [always]


def test_cap080_gauges_tell_goal_current_and_obsolete(world):
    """CAP-080: an obsolete object that stays, perhaps for lack of permission, is counted."""
    world.set_zones("z1", "z2", "z3")
    metrics = world.publishing._metrics = Metrics()
    known = {"fast/zone=z1": {"metadata": {"uid": "a"}}, "fast/zone=z2": {"metadata": {"uid": "b"}}}
    world.store.replace(DRIVER, {}, known, {"csisc-old": "c"})
    world.publishing.tick([world.driver])
    names = ("desired_goal", "desired_current", "obsolete")
    value, label = metrics.registry.get_sample_value, {"driver_name": ""}
    assert [value(f"csistoragecapacities_{name}", label) for name in names] == [3, 2, 1]
