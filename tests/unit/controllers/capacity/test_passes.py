"""One reconcile of a capacity key: its writes, notes and requests, step by step (CAP-040).

Redis is real; API server and driver are in memory. `one_pass` runs a single reconcile, so that
defects which the next ones would repair are visible.
"""

from __future__ import annotations

import pytest

from csi_client.errors import CsiError
from tests.support.capacity_world import CAPACITIES, NAMESPACE, CapacityWorld
from tests.support.fake_cluster import CAPABILITIES, DRIVER
from tests.support.fake_context import FakeLease
from workers.config.settings import KubeSettings
from workers.controllers.capacity.items import Item
from workers.controllers.capacity.objects import object_names
from workers.controllers.capacity.sync import sync_capacity
from workers.engine.outcome import Action
from workers.errors import CatalogIncomplete, LeaseLost
from workers.kube.errors import AlreadyExistsError, ConflictError
from workers.queue.keys import capacity_key
from workers.topology.terms import make_term

GIB = 2**30
ITEM = "fast/zone=z1"
CONFLICT = ConflictError(409, "Conflict", "the object has been modified")
GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.fixture
def world(redis_client):
    return new_world(redis_client)


def new_world(redis_client, **settings):
    world = CapacityWorld(redis_client, **settings)
    world.add_class("fast")
    world.set_zones("z1")
    return world


def one_pass(world, text, *, is_lost=False):
    """Reconcile the key once, whatever else is in the queue."""
    key = capacity_key(DRIVER, text)
    lease = FakeLease(key, fails=0, memo="", mark={})
    lease.is_lost = is_lost
    return sync_capacity(world.runtime, world.driver, key, lease)


def planned(world):
    """Store a plan without an object for the item."""
    world.store.notice(DRIVER, {"digest": "d", "classes": {}})


def published(world):
    """Publish the item's object, and return it."""
    world.tick()
    world.clear()
    (found,) = world.objects()
    return found


def names(world):
    """Return the names that are tried for the item's object."""
    item = Item("fast", make_term({"zone": "z1"}))
    return list(object_names(world.publishing.publisher(world.driver), item))


def known_version(world):
    _, known = world.store.known(DRIVER, ITEM)
    return None if known is None else known["metadata"]["resourceVersion"]


def due(world):
    return [key.object for key in world.due]


# The text of the key.


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("slow/zone=z1", "not wanted", id="no such class"),
        pytest.param("fast/zone=z9", "not wanted", id="no such segment"),
        pytest.param("nonsense", "unreadable", id="a key from elsewhere"),
        pytest.param("gone:u9", "was ours to delete", id="an object nobody knows"),
        pytest.param("del:csisc-x", "not obsolete any more", id="an object not planned to go"),
    ],
)
def test_a_key_without_work_asks_and_writes_nothing(world, text, reason):
    outcome = one_pass(world, text)
    assert (outcome.action, outcome.reason) == (Action.DONE, reason)
    assert (world.client.requests, world.kube.writes, world.due) == ([], [], [])


def test_a_class_that_went_in_the_middle_of_the_pass_is_not_asked_for(world):
    planned(world)
    world.catalog.get = lambda *_: None
    assert one_pass(world, ITEM).reason == "class is gone"
    assert world.client.requests == []


def test_before_the_first_plan_an_item_asks_for_one_and_waits(world):
    """CAP-050: The plan adopts existing objects before any object is created."""
    assert one_pass(world, ITEM).reason == "waits for the plan"
    assert (due(world), world.client.requests) == (["plan"], [])


def test_a_worker_that_does_not_publish_leaves_the_key_to_another(world):
    """Flags differ for a short time while they are changed."""
    world.runtime.parts.clear()
    outcome = one_pass(world, "poll")
    assert (outcome.action, outcome.delay_seconds) == (Action.WAIT, 5.0)


def test_cap012_a_driver_that_tells_no_capacity_has_no_work(world):
    object.__setattr__(world.driver, "controller_capabilities", CAPABILITIES)
    outcome = one_pass(world, "poll")
    assert (outcome.action, outcome.reason) == (Action.DONE, "capacity is not published")


def test_c114_an_incomplete_catalog_is_waited_for(world):
    def unknown(*_args):
        raise CatalogIncomplete("the watcher has not written all classes yet")

    world.publishing.wanted = unknown
    outcome = one_pass(world, "plan")
    assert (outcome.action, outcome.delay_seconds) == (Action.WAIT, 0.1)


# A name that is taken (M-014).


@pytest.mark.parametrize(
    ("bytes_", "reason", "writes"),
    [(GIB, "unchanged", 0), (2 * GIB, "updated", 1)],
    ids=["same size", "other size"],
)
def test_m014_an_object_of_ours_under_the_name_is_taken_over(world, bytes_, reason, writes):
    planned(world)
    world.add_object(names(world)[0], "fast", "z1")
    world.client.free = {"z1": bytes_}
    assert one_pass(world, ITEM).reason == reason
    (found,) = world.objects()
    assert found["capacity"] == ("1Gi" if bytes_ == GIB else "2Gi")
    assert len(world.kube.writes) == writes
    assert known_version(world) == found["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("storage_class", "metadata"),
    [
        pytest.param("slow", {}, id="another item's"),
        pytest.param("fast", {"labels": {"a": "b"}}, id="C-098 its labels were taken off"),
        pytest.param("fast", GOING, id="it is being deleted"),
    ],
)
def test_m014_anybody_else_s_object_keeps_the_name(world, storage_class, metadata):
    planned(world)
    first, second = names(world)[:2]
    other = world.add_object(first, storage_class, "z1", metadata=metadata)
    assert one_pass(world, ITEM).reason == "created"
    assert world.kube.writes == [("create", second)]
    assert world.kube.kind(CAPACITIES)[first] == other


def test_m014_a_name_that_is_free_again_is_passed_over(world):
    """The owner of the name was deleted between the refusal and the read.

    Any other name is fine.
    """
    planned(world)
    world.kube.fail[f"create_{CAPACITIES}"] = [AlreadyExistsError(409, "AlreadyExists", "taken")]
    assert one_pass(world, ITEM).reason == "created"
    assert world.kube.writes == [("create", names(world)[1])]


def test_m014_without_a_free_name_the_item_is_tried_again(world):
    planned(world)
    for name in names(world):
        world.add_object(name, "slow", "z1")
    outcome = one_pass(world, ITEM)
    assert (outcome.action, outcome.reason) == (Action.RETRY, "no free name")
    assert world.kube.writes == []


# Writing a known object (C-108).


def test_cap041_what_was_written_is_known_at_once(world):
    """The next reconciles find the object without a plan, and read it once before each write."""
    planned(world)
    reads = []
    get = world.kube.get
    world.kube.get = lambda *args, **more: reads.append(args) or get(*args, **more)
    for size in (GIB, 2 * GIB, 3 * GIB):
        world.client.free = {"z1": size}
        one_pass(world, ITEM)
    assert [call for call, _ in world.kube.writes] == ["create", *[f"update_{CAPACITIES}"] * 2]
    assert len(reads) == 2


def test_c108_a_conflict_with_the_same_size_is_no_second_write(world):
    """Another worker wrote it; its version is known from now on."""
    found = published(world)
    live = world.kube.add(CAPACITIES, found | {"capacity": "2Gi"})
    world.client.free = {"z1": 2 * GIB}
    assert one_pass(world, ITEM).reason == "unchanged"
    assert world.kube.writes == []
    assert known_version(world) == live["metadata"]["resourceVersion"]


def changed(world, found, **metadata):
    """Return a function that changes the live object, so that it differs from the known one."""
    metadata = {**found["metadata"], **metadata}
    return lambda: world.kube.add(CAPACITIES, {**found, "metadata": metadata})


@pytest.mark.parametrize("problem", ["labels", "going", "another item", "gone"])
def test_c098_an_object_that_is_not_ours_any_more_is_planned_anew(world, problem):
    found = published(world)
    world.kube.fail[f"update_{CAPACITIES}"] = [CONFLICT]
    name = found["metadata"]["name"]
    world.kube.before[f"update_{CAPACITIES}"] = {
        "labels": changed(world, found, labels={"a": "b"}),
        "going": changed(world, found, **GOING),
        "another item": changed(world, {**found, "storageClassName": "slow"}),
        "gone": lambda: world.kube.drop(CAPACITIES, name, NAMESPACE),
    }[problem]
    world.client.free = {"z1": 2 * GIB}
    assert one_pass(world, ITEM).reason == "object is gone"
    assert world.kube.writes == []
    assert (known_version(world), due(world)) == (None, ["plan"])


def test_c108_conflicts_without_end_are_tried_again_later(world):
    """It is tried three times in a reconcile, then after a back-off; the object stays known."""
    published(world)
    world.kube.fail[f"update_{CAPACITIES}"] = [CONFLICT] * 3
    world.client.free = {"z1": 2 * GIB}
    outcome = one_pass(world, ITEM)
    assert (outcome.action, outcome.reason) == (Action.RETRY, "conflict")
    assert (world.kube.writes, world.due) == ([], [])
    assert known_version(world) is not None


@pytest.mark.parametrize(
    ("is_published", "seconds"), [(False, 0.5), (True, 1.0)], ids=["new item", "known value"]
)
@pytest.mark.parametrize("is_negative", [False, True], ids=["error", "C-116 negative size"])
def test_cap033_the_first_retry_of_a_new_item_comes_sooner(
    world, is_published, seconds, is_negative
):
    (published if is_published else planned)(world)
    if is_negative:
        world.client.free = {"z1": -1}
    else:
        world.client.errors = [CsiError(13, "broken")]
    outcome = one_pass(world, ITEM)
    assert (outcome.action, outcome.base_seconds) == (Action.RETRY, seconds)
    assert world.kube.writes == []


# Before each write.


def prepared(world, write):
    """Return the text of a key whose reconcile makes exactly this write."""
    if write == "create":
        planned(world)
        return ITEM
    if write == "update":
        published(world)
        world.client.free = {"z1": 2 * GIB}
        return ITEM
    stale = world.add_object("csisc-old", "gone", "z1")
    world.store.replace(DRIVER, {}, {}, {"csisc-old": stale["metadata"]["uid"]})
    return "del:csisc-old"


@pytest.mark.parametrize("write", ["create", "update", "delete"])
def test_cap071_every_write_takes_its_turn(redis_client, write):
    world = new_world(redis_client, kube=KubeSettings(capacity_qps=1000, capacity_burst=100))
    text = prepared(world, write)
    world.waits.clear()
    one_pass(world, text)
    assert (len(world.kube.writes), len(world.waits)) == (1, 1)


@pytest.mark.parametrize("write", ["create", "update", "delete"])
def test_g9_without_its_lease_a_pass_writes_nothing(world, write):
    text = prepared(world, write)
    with pytest.raises(LeaseLost):
        one_pass(world, text, is_lost=True)
    assert world.kube.writes == []


def test_g9_a_plan_without_its_lease_changes_nothing_of_what_is_known(world):
    """Listing took long, and another worker's plan is newer."""
    world.add_object("csisc-old", "gone", "z1")
    with pytest.raises(LeaseLost):
        one_pass(world, "plan", is_lost=True)
    assert world.store.counts(DRIVER) == (0, 0)
    assert world.due == []


# The plan.


def test_what_changes_while_a_plan_lists_leads_to_another_one(world):
    """The state is noted before the list, so only a change leads to a second plan."""
    asked = []

    def meanwhile():
        world.publishing.tick([world.driver])
        asked.append(due(world).count("plan"))
        world.set_zones("z1", "z2")
        world.publishing.tick([world.driver])
        asked.append(due(world).count("plan"))

    world.kube.before[f"list_{CAPACITIES}"] = meanwhile
    one_pass(world, "plan")
    assert asked == [0, 1]


def test_c104_a_class_made_anew_is_noted_only_once_its_items_are_asked_for(world):
    """After a plan that failed in between, the next plan adds their keys."""
    published(world)
    world.add_class("fast", uid="second")
    world.kube.fail[f"list_{CAPACITIES}"] = [CONFLICT]
    with pytest.raises(ConflictError):
        one_pass(world, "plan")
    assert world.due == []
    one_pass(world, "plan")
    assert due(world) == [ITEM]


# Obsolete objects.


def test_cap042_an_obsolete_object_is_deleted_and_forgotten(world):
    text = prepared(world, "delete")
    assert world.store.counts(DRIVER) == (0, 1)
    assert one_pass(world, text).reason == "deleted"
    assert world.kube.writes == [("delete", "csisc-old")]
    assert world.store.counts(DRIVER) == (0, 0)


def test_cap042_an_object_that_was_given_to_an_item_meanwhile_stays(world):
    text = prepared(world, "delete")
    stored = world.kube.kind(CAPACITIES)["csisc-old"]
    world.store.put(DRIVER, {"gone/zone=z1": stored})
    one_pass(world, text)
    assert world.kube.writes == []
    assert world.store.counts(DRIVER) == (1, 0)


@pytest.mark.parametrize("is_made_anew", [False, True], ids=["gone", "another uid"])
def test_cap042_only_the_planned_object_is_deleted(world, is_made_anew):
    """The UID is the precondition; an object that is gone counts as success."""
    text = prepared(world, "delete")
    world.kube.drop(CAPACITIES, "csisc-old", NAMESPACE)
    if is_made_anew:
        world.add_object("csisc-old", "fast", "z1")
    assert one_pass(world, text).reason == "deleted"
    assert world.kube.writes == []
    assert len(world.objects()) == is_made_anew
    assert world.store.counts(DRIVER) == (0, 0)


def test_cap042_an_object_without_the_drivers_labels_stays(world):
    """Its name and uid come from Redis, where they may be forged."""
    text = prepared(world, "delete")
    changed(world, world.kube.kind(CAPACITIES)["csisc-old"], labels={"a": "b"})()
    one_pass(world, text)
    assert world.kube.writes == []
    assert world.store.counts(DRIVER) == (0, 0)


def test_c098_an_object_that_somebody_deleted_is_forgotten_and_its_item_asked_for(world):
    found = published(world)
    assert one_pass(world, f"gone:{found['metadata']['uid']}").reason == "is made again"
    assert (known_version(world), due(world)) == (None, [ITEM])


def test_what_nobody_reads_of_an_object_is_not_kept(world):
    """managedFields are more than half of an object, and a PUT without them keeps them."""
    world.add_object("csisc-old", "fast", "z1", metadata={"managedFields": [{"manager": "x"}]})
    one_pass(world, "plan")
    _, known = world.store.known(DRIVER, ITEM)
    assert "managedFields" not in known["metadata"]
    assert known["metadata"]["name"] == "csisc-old"


@pytest.mark.parametrize("has_topology", [True, False])
def test_cap011_the_topology_is_sent_to_drivers_that_have_one(world, has_topology):
    planned(world)
    if not has_topology:
        object.__setattr__(world.driver, "plugin_capabilities", frozenset({"CONTROLLER_SERVICE"}))
    one_pass(world, ITEM)
    (request,) = world.client.requests
    assert request.HasField("accessible_topology") is has_topology


def test_an_object_that_a_restore_of_etcd_set_back_is_published_again(world):
    """Its version is lower than the known one, and its size is outdated."""
    found = published(world)
    metadata = found["metadata"]
    world.store.put(DRIVER, {ITEM: {**found, "metadata": {**metadata, "resourceVersion": "900"}}})
    past = {**found, "capacity": "1", "metadata": {**metadata, "resourceVersion": "1"}}
    world.kube.objects[CAPACITIES, metadata["namespace"], metadata["name"]] = past
    world.poll()
    assert [one["capacity"] for one in world.objects()] == [found["capacity"]]
