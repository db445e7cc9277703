"""An open call is repeated with its original request, whatever has changed (COR2-2, COR2-6).

A driver that follows CSI answers a different request under the same name with ALREADY_EXISTS. The
claim would then wait forever, and deleting it would leave its volume behind.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from itertools import count, permutations

import pytest

from csi_client import errors
from csi_client.errors import CsiError
from tests.support.crash_world import CLAIM, VOLUME, CrashWorld, FakeStorage
from tests.support.fake_cluster import DRIVER, TOPOLOGY, World
from workers.constants import ANN_SELECTED_NODE
from workers.engine.outcome import Action
from workers.topology.cluster import ClusterTopology

TIMEOUT = CsiError(errors.DEADLINE_EXCEEDED, "late")
INTERNAL = CsiError(errors.INTERNAL, "told to fail")
ZONE = "zone"
CLASSES = "storageclasses.storage.k8s.io"
ATTRIBUTES = "volumeattributesclasses.storage.k8s.io"
PARAMETERS = {
    "tier": "old",
    "csi.storage.k8s.io/fstype": "xfs",
    "csi.storage.k8s.io/provisioner-secret-name": "${pvc.annotations['team']}",
    "csi.storage.k8s.io/provisioner-secret-namespace": "default",
}


def secret(world, name, value):
    data = {"password": b64encode(value.encode()).decode()}
    world.kube.add("secrets", {"metadata": {"namespace": "default", "name": name}, "data": data})


def attributes(world, value):
    world.kube.add(
        ATTRIBUTES,
        {"metadata": {"name": "fast-iops"}, "driverName": DRIVER, "parameters": {"iops": value}},
    )


def a_world():
    """Return a world whose class has parameters, a secret and an attributes class.

    There are three zones, and the claim has the selected node n1.
    """
    world = World(plugin=TOPOLOGY, controller=World().controller | {"MODIFY_VOLUME"})
    nodes = {f"n{one}": {ZONE: f"z{one}"} for one in "123"}
    world.clusters.topology = ClusterTopology(
        {name: {DRIVER: [ZONE]} for name in nodes}, nodes, version=1
    )
    world.add_class(parameters=PARAMETERS, mountOptions=["ro"])
    secret(world, "red", "first")
    attributes(world, "100")
    world.add_claim(
        annotations={ANN_SELECTED_NODE: "n1", "team": "red", "backup": "daily"},
        volumeAttributesClassName="fast-iops",
    )
    world.live_claim()["metadata"]["labels"] = {"tier": "high", "zone": "x"}
    set_flags(world, claim_labels_to_driver=("tier",), claim_annotations_to_driver=("backup",))
    return world


def remake_class(world, **changes):
    world.kube.objects.pop((CLASSES, "", "fast"), None)
    world.add_class(**{"parameters": PARAMETERS, **changes})


def set_flags(world, **changes):
    provision = replace(world.driver.settings.provision, **changes)
    world.driver = replace(
        world.driver, settings=replace(world.driver.settings, provision=provision)
    )


def annotate(world, **texts):
    world.live_claim()["metadata"]["annotations"].update(texts)


CHANGES = {
    "class with other parameters": lambda w: remake_class(w, parameters={"tier": "new"}),
    "class with an invalid parameter": lambda w: remake_class(
        w, parameters={"csi.storage.k8s.io/unknown": "x"}
    ),
    "class with other topologies": lambda w: remake_class(
        w,
        allowedTopologies=[{"matchLabelExpressions": [{"key": ZONE, "values": ["z3"]}]}],
    ),
    "class of another provisioner": lambda w: remake_class(w, provisioner="other.example.org"),
    "class deleted": lambda w: w.kube.objects.pop((CLASSES, "", "fast"), None),
    "attributes class with other parameters": lambda w: attributes(w, "200"),
    "attributes class deleted": lambda w: w.kube.objects.pop((ATTRIBUTES, "", "fast-iops"), None),
    "--extra-create-metadata": lambda w: set_flags(w, extra_create_metadata=True),
    "--claim-labels-to-driver": lambda w: set_flags(w, claim_labels_to_driver=("tier", "zone")),
    "--claim-annotations-to-driver": lambda w: set_flags(w, claim_annotations_to_driver=()),
    "label for the driver": lambda w: w.live_claim()["metadata"].update(labels={"tier": "low"}),
    "annotation for the driver": lambda w: annotate(w, backup="never"),
    "--default-fstype": lambda w: set_flags(w, default_fstype="btrfs"),
    "--volume-name-prefix": lambda w: set_flags(w, volume_name_prefix="vol"),
    "--volume-name-uuid-length": lambda w: set_flags(w, volume_name_uuid_length=1),
    "--strict-topology": lambda w: set_flags(w, strict_topology=True),
    "all nodes deleted": lambda w: setattr(
        w.clusters, "topology", ClusterTopology({}, {}, version=2)
    ),
    "another node selected": lambda w: annotate(w, **{ANN_SELECTED_NODE: "n3"}),
    "no node selected": lambda w: w.live_claim()["metadata"]["annotations"].pop(
        ANN_SELECTED_NODE, None
    ),
    "annotation for the secret's name": lambda w: annotate(w, team="blue"),
}


@pytest.mark.parametrize("is_deleted", [False, True], ids=["claim lives", "claim deleted"])
@pytest.mark.parametrize(("first", "second"), [*permutations(CHANGES, 2)])
def test_p330_p335_d003_d013_t133_t134_the_same_request_after_any_two_changes(
    first, second, is_deleted
):
    """P-425: The name stays the same too. The PV names the class that the volume was made with."""
    world = a_world()
    claim = world.live_claim()
    world.client.answers = [TIMEOUT, TIMEOUT]
    world.claim_pass(claim)
    CHANGES[first](world)
    world.claim_pass(claim)
    CHANGES[second](world)
    if is_deleted:
        world.drop_claim()
    world.claim_pass(claim)
    requests = {one.SerializeToString(deterministic=True) for one in world.client.created}
    assert len(world.client.created) == 3
    assert len(requests) == 1
    assert set(world.volumes()) == {world.client.created[0].name}
    (volume,) = world.volumes().values()
    assert volume["spec"]["csi"]["fsType"] == "xfs"
    assert volume["spec"]["mountOptions"] == ["ro"]
    assert volume["spec"]["volumeAttributesClassName"] == "fast-iops"
    assert world.intents.intents == {}


def test_a_record_has_no_secret_and_a_repeat_reads_it_again():
    """P-425: A secret that is rotated between two calls is sent with its present value."""
    world = a_world()
    claim = world.live_claim()
    world.client.answers = [TIMEOUT]
    world.claim_pass(claim)
    assert "first" not in str(world.intents.intents)
    secret(world, "red", "second")
    world.claim_pass(claim)
    assert [dict(one.secrets) for one in world.client.created] == [
        {"password": "first"},
        {"password": "second"},
    ]


def test_a_new_class_counts_once_the_call_has_ended():
    world = a_world()
    claim = world.live_claim()
    world.client.answers = [TIMEOUT, INTERNAL]
    world.claim_pass(claim)
    remake_class(world, parameters={"tier": "new"})
    world.claim_pass(claim)
    world.claim_pass(claim)
    assert [one.parameters["tier"] for one in world.client.created] == ["old", "old", "new"]


@pytest.mark.parametrize("unreadable", [{"name": 7}, {"capacity_range": []}, {"parameters": "x"}])
def test_a_recorded_request_that_cannot_be_read_ends_no_pass(unreadable):
    world = a_world()
    claim = world.live_claim()
    world.client.answers = [TIMEOUT]
    world.claim_pass(claim)
    (record,) = world.intents.intents.values()
    record["request"] = unreadable
    assert world.claim_pass(claim).action is Action.RETRY
    assert "Check it with `csi-fleet audit`" in world.events.warnings()[-1]
    assert world.intents.intents


class StrictStorage(FakeStorage):
    """Answers a different request under a known name with ALREADY_EXISTS, as CSI requires."""

    def __init__(self):
        super().__init__()
        self.requests = {}

    def create_volume(self, request, **options):
        sent = request.SerializeToString(deterministic=True)
        if request.name in self.volumes and self.requests[request.name] != sent:
            self.calls.append("refused")
            raise CsiError(errors.ALREADY_EXISTS, "exists with another request")
        self.requests[request.name] = sent
        return super().create_volume(request, **options)


def strict_world(redis_client):
    world = CrashWorld(redis_client)
    world.storage = StrictStorage()
    object.__setattr__(world.driver, "client", world.storage)
    world.add_claim()
    return world


def remake(world, tier):
    world.hide_class()
    uid = f"class-{tier}"
    metadata = {**world.storage_class["metadata"], "uid": uid}
    world.storage_class = {
        **world.storage_class, "metadata": metadata, "parameters": {"tier": tier}
    }  # fmt: skip
    world.show_class()


@pytest.mark.parametrize("is_deleted", [False, True], ids=["bound", "claim deleted"])
@pytest.mark.parametrize("tiers", [("new",), ("new", "newer")], ids=["once", "twice"])
@pytest.mark.parametrize("end", [TIMEOUT, INTERNAL], ids=["no answer", "answered by an error"])
def test_a_strict_driver_after_a_class_made_anew(redis_client, end, tiers, is_deleted):
    """CSI treats INTERNAL as an end, but a driver may return it after it made the volume."""
    world = strict_world(redis_client)
    world.storage.plans = [("after", end)]
    owner = world.owner()
    world.live(owner, passes=1)
    for tier in tiers:
        remake(world, tier)
        world.now_ms += 60_000
        world.live(owner, passes=1)
    if is_deleted:
        world.delete_claim()
    world.live(owner)
    if not is_deleted:
        assert world.kube.objects[CLAIM]["status"]["phase"] == "Bound"
        assert len(world.storage.volumes) == 1
        world.delete_claim()
        world.live(owner)
    assert world.storage.volumes == {}
    assert world.kube.kind("persistentvolumes") == {}
    assert world.left_in_redis() == []


def flags_of(world, owner=None, **changes):
    """Change the flags: for another worker, or for this one after a restart."""
    provision = replace(world.settings.provision, **changes)
    world.settings = replace(world.settings, provision=provision)
    object.__setattr__(world, "driver", replace(world.driver, settings=world.settings))


@pytest.mark.parametrize("is_deleted", [False, True], ids=["bound", "claim deleted"])
@pytest.mark.parametrize("end", [TIMEOUT, INTERNAL], ids=["no answer", "answered by an error"])
@pytest.mark.parametrize(
    "flags", [{"volume_name_prefix": "vol"}, {"volume_name_uuid_length": 1}], ids=str
)
def test_workers_with_other_name_flags_share_one_attempt(redis_client, flags, end, is_deleted):
    """The intent belongs to the claim and names the volume, so only one volume is ever made."""
    world = CrashWorld(redis_client)
    world.add_claim()
    world.storage.plans = [("after", end)]
    world.live(world.owner(), passes=1)
    flags_of(world, **flags)
    if is_deleted:
        world.delete_claim()
    world.live(world.owner())
    if not is_deleted:
        assert world.kube.objects[CLAIM]["status"]["phase"] == "Bound"
        assert set(world.storage.volumes) == {VOLUME}
        world.delete_claim()
        world.live(world.owner())
    assert world.storage.volumes == {}
    assert world.kube.kind("persistentvolumes") == {}
    assert world.kube.kind("configmaps") == {}
    assert world.left_in_redis() == []


@pytest.mark.parametrize("is_deleted", [False, True], ids=["claim lives", "claim deleted"])
@pytest.mark.parametrize("is_wiped", [False, True], ids=["Redis kept", "Redis emptied"])
@pytest.mark.parametrize("end", [None, TIMEOUT], ids=["answered", "no answer"])
def test_a_worker_dies_and_its_successor_has_another_class_and_other_names(
    redis_client, end, is_wiped, is_deleted
):
    """A worker dies before each step.

    A strict driver then has one volume, or none for a gone claim.
    """
    for effect in count():
        redis_client.flushall()
        world = strict_world(redis_client)
        world.storage.plans = [("after", end)] if end else []
        owner = world.owner(dies_before=effect)
        world.live(owner)
        if not owner.is_dead:
            assert effect > 2
            return
        # Redis lost the intent of a call that was not copied yet: the limit stated in
        # guarantees.md.
        is_forgotten = is_wiped and not world.kube.kind("configmaps")
        if is_wiped:
            world.wipe()
        remake(world, "new")
        flags_of(world, volume_name_prefix="vol")
        if is_deleted:
            world.delete_claim()
        world.pass_away()
        world.live(world.owner())
        if not is_deleted:
            assert world.kube.objects[CLAIM]["status"]["phase"] == "Bound", world.died_at
            assert len(world.storage.volumes) == 1 or is_forgotten, world.died_at
            world.delete_claim()
            world.live(world.owner())
        assert world.storage.volumes == {} or is_forgotten, world.died_at
        assert world.kube.kind("persistentvolumes") == {}, world.died_at
        assert world.kube.kind("configmaps") == {}, world.died_at
        assert world.left_in_redis() == [], world.died_at


def test_the_lock_of_the_recorded_name_is_taken():
    """Deleting the PV of that name excludes repeating the call."""
    world = a_world()
    claim = world.live_claim()
    world.client.answers = [TIMEOUT]
    world.claim_pass(claim)
    set_flags(world, volume_name_prefix="vol")
    world.queue.busy.add("pvc-u1")
    assert world.claim_pass(claim).action is Action.BLOCKED
    assert len(world.client.created) == 1
    world.queue.busy.clear()
    world.claim_pass(claim)
    assert [one.name for one in world.client.created] == ["pvc-u1"] * 2
    assert set(world.volumes()) == {"pvc-u1"}


def test_a_volume_that_a_worker_with_other_flags_saved_is_found():
    """This holds before the claim is bound to the volume."""
    world = a_world()
    claim = world.live_claim()
    world.claim_pass(claim)
    set_flags(world, volume_name_prefix="vol")
    assert world.claim_pass(claim).reason == "volume exists"
    assert set(world.volumes()) == {"pvc-u1"}
    assert len(world.client.created) == 1
