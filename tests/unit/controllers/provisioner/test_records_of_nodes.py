"""Node deployment: no other node continues what one node's attempt left."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from tests.support.fake_cluster import DRIVER, FakeDriverClient, World
from workers.config.settings import NodeSettings, Settings
from workers.constants import ANN_SELECTED_NODE
from workers.controllers.provisioner.claims import claim_volume, sync_claim
from workers.controllers.provisioner.race import Wait
from workers.engine.outcome import Action
from workers.queue.copies import copy_name
from workers.queue.keys import claim_key

TIMEOUT = CsiError(errors.DEADLINE_EXCEEDED, "late")


class Nodes(World):
    """Two nodes of one driver, each with its own storage, share an API server and Redis."""

    def __init__(self):
        super().__init__(Settings())
        self.clients, self.drivers = {}, {}
        for name in ("n1", "n2"):
            client = FakeDriverClient()
            client.get_capacity = lambda _: csi.GetCapacityResponse(available_capacity=4096)
            node = NodeSettings(
                enabled=True, node_name=name, base_delay_seconds=20.0, max_delay_seconds=60.0
            )
            driver = replace(
                self.driver,
                queue_name=f"{DRIVER}@{name}",
                client=client,
                settings=Settings(node=node),
            )
            object.__setattr__(driver, "node_segments", {"host": name})
            self.clients[name], self.drivers[name] = client, driver

    def node_pass(self, node, claim):
        meta, driver = claim["metadata"], self.drivers[node]
        key = claim_key(driver.queue_name, meta["namespace"], meta["name"], meta["uid"])
        lease = self.lease(key, claim_volume(driver, key))
        outcome = sync_claim(self.runtime, driver, key, lease)
        self._settle(lease, outcome)
        return outcome


@pytest.mark.parametrize("is_deleted", [False, True], ids=["claim waits", "claim is gone"])
def test_a_late_look_of_another_node_makes_no_second_volume(is_deleted):
    """Both nodes compete for the claim; n1 wins and makes the volume, but its answer is lost."""
    world = Nodes()
    world.add_class()
    claim = world.add_claim()
    outcome = world.node_pass("n2", claim)
    assert (outcome.action, outcome.reason) == (Action.RETRY, "waits to become owner")
    world.memo = Wait(0, time.time() - 1).text()
    assert world.node_pass("n1", claim).reason == "became owner"
    world.clients["n1"].answers = [TIMEOUT]
    world.node_pass("n1", world.live_claim())
    assert len(world.clients["n1"].created) == 1  # and the volume may exist
    if is_deleted:
        world.drop_claim()
    # n2's delayed key is due, because no process removed it from the queue.
    world.memo = outcome.memo
    world.node_pass("n2", claim)
    assert world.clients["n2"].created == []
    assert [*world.intents.intents] == [f"pvc-{claim['metadata']['uid']}@n1"]


def test_without_a_record_the_other_node_leaves_it_alone():
    """Control: without an intent, the check for the selected node works."""
    world = Nodes()
    world.add_class()
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: "n1"})
    assert world.node_pass("n2", claim).action is Action.DONE
    assert world.clients["n2"].created == []


@pytest.fixture
def moved():
    """Return a world where n1 made a volume, its answer was lost and the scheduler chose n2."""
    world = Nodes()
    world.add_class(volumeBindingMode="WaitForFirstConsumer")
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: "n1"})
    world.clients["n1"].answers = [TIMEOUT]
    assert world.node_pass("n1", claim).action is Action.RETRY
    world.kube.add("persistentvolumeclaims", with_node(world.live_claim(), "n2"))
    return world


def with_node(claim, node):
    """Return the claim with this selected node; "" removes the annotation."""
    meta = claim["metadata"]
    annotations = {**(meta.get("annotations") or {}), ANN_SELECTED_NODE: node}
    kept = {name: value for name, value in annotations.items() if value}
    return {**claim, "metadata": {**meta, "annotations": kept}}


def volume_of_n2(world, handle):
    meta = world.live_claim()["metadata"]
    return world.kube.add(
        "persistentvolumes",
        {
            "metadata": {"name": f"pvc-{meta['uid']}"},
            "spec": {
                "claimRef": {name: meta[name] for name in ("namespace", "name", "uid")},
                "csi": {"driver": DRIVER, "volumeHandle": handle},
            },
        },
    )


def test_what_is_left_waits_for_the_other_nodes_volume(moved):
    """G7: A shared storage may be making this very volume, so nothing is saved or deleted."""
    claim = moved.live_claim()
    for _ in range(3):
        assert moved.node_pass("n1", claim).action is Action.RETRY
    assert moved.volumes() == {}
    assert moved.clients["n1"].deleted == []
    going = volume_of_n2(moved, "another")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    moved.kube.add("persistentvolumes", going)
    assert moved.node_pass("n1", claim).action is Action.RETRY
    assert moved.clients["n1"].deleted == []


@pytest.mark.parametrize("is_bound", [False, True])
def test_what_is_left_is_deleted_once_the_other_node_has_another(moved, is_bound):
    claim = moved.live_claim()
    volume_of_n2(moved, "another")
    if is_bound:
        claim["spec"]["volumeName"] = f"pvc-{claim['metadata']['uid']}"
        moved.kube.add("persistentvolumeclaims", claim)
    outcome = moved.node_pass("n1", claim)
    assert (outcome.action, outcome.reason) == (Action.DONE, "deleted without PV")
    (deleted,) = moved.clients["n1"].deleted
    assert deleted != "another"
    assert moved.intents.intents == {}
    assert len(moved.volumes()) == 1


def test_a_volume_whose_id_a_pv_names_is_not_deleted(moved):
    """CSI: Equal IDs mean one volume, so this is the claim's volume in a shared storage."""
    claim = moved.live_claim()
    moved.node_pass("n1", claim)
    (made,) = moved.intents.unsaved.values()
    volume_of_n2(moved, made["spec"]["csi"]["volumeHandle"])
    outcome = moved.node_pass("n1", claim)
    assert (outcome.action, outcome.reason) == (Action.DONE, "another node's volume")
    assert moved.clients["n1"].deleted == []
    assert moved.intents.intents == moved.intents.unsaved == {}


def test_a_claim_that_names_no_node_waits_again(moved):
    """P-052: The node that is chosen next, perhaps n1, continues."""
    moved.kube.add("persistentvolumeclaims", with_node(moved.live_claim(), ""))
    claim = moved.live_claim()
    assert moved.node_pass("n1", claim).action is Action.DONE
    assert len(moved.clients["n1"].created) == 1
    assert moved.intents.intents
    moved.kube.add("persistentvolumeclaims", with_node(claim, "n1"))
    assert moved.node_pass("n1", claim).action is Action.DONE
    assert len(moved.clients["n1"].created) == 2
    assert len(moved.volumes()) == 1


@pytest.mark.parametrize("is_failed", [False, True])
def test_nobody_ends_the_attempt_of_another_node(moved, is_failed):
    """This also holds if the nodes share a Redis."""
    claim = moved.live_claim()
    if is_failed:
        moved.clients["n1"].answers = [CsiError(errors.INTERNAL, "no")]
        moved.kube.add("persistentvolumeclaims", with_node(claim, "n1"))
        moved.node_pass("n1", claim)
    moved.kube.add("persistentvolumeclaims", with_node(claim, "n3"))
    assert moved.node_pass("n2", claim).action is Action.DONE
    assert moved.clients["n2"].created == []


def test_copies_of_nodes_have_names_of_their_own():
    """The copies may be in one namespace."""
    names = {
        copy_name(claim_key(driver, "ns", "data", "1"))
        for driver in (DRIVER, f"{DRIVER}@n1", f"{DRIVER}@n2")
    }
    assert len(names) == 3
    assert "csi-fleet-intent-pvc-1" in names


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_request_is_repeated_by_the_node_that_sent_it(moved, node):
    """P-330: Another node's request would ask for a volume on the wrong node."""
    (record,) = moved.intents.intents.values()
    record["request"] = {**record["request"], "parameters": {"sent": "by n1"}}
    moved.kube.add("persistentvolumeclaims", with_node(moved.live_claim(), node))
    assert moved.node_pass(node, moved.live_claim()).action is Action.DONE
    (sent,) = [dict(one.parameters) for one in moved.clients[node].created[-1:]]
    assert sent == ({"sent": "by n1"} if node == "n1" else {})


def test_nodes_that_share_a_redis_have_attempts_of_their_own(moved):
    """The intent of n1 is kept until n1 has deleted its volume, whatever n2 does."""
    claim = moved.live_claim()
    uid = claim["metadata"]["uid"]
    moved.clients["n2"].answers = [TIMEOUT]
    assert moved.node_pass("n2", claim).action is Action.RETRY
    assert {*moved.intents.intents} == {f"pvc-{uid}@n1", f"pvc-{uid}@n2"}
    assert moved.node_pass("n2", claim).action is Action.DONE
    assert [*moved.intents.intents] == [f"pvc-{uid}@n1"]
    (saved,) = moved.volumes().values()
    assert moved.node_pass("n1", claim).reason in {"deleted without PV", "another node's volume"}
    assert moved.intents.intents == {}
    assert saved["spec"]["csi"]["volumeHandle"] not in moved.clients["n1"].deleted


def test_a_volume_that_another_node_saved_is_seen_without_a_mark_of_its_own(moved):
    """n2 saved the volume; before the claim was bound, it was assigned to another node."""
    claim = moved.live_claim()
    assert moved.node_pass("n2", claim).action is Action.DONE
    moved.kube.add("persistentvolumeclaims", with_node(claim, "n3"))
    moved.drivers["n3"] = replace(
        moved.drivers["n2"],
        queue_name=f"{DRIVER}@n3",
        settings=Settings(node=NodeSettings(enabled=True, node_name="n3")),
    )
    before = len(moved.clients["n2"].created)
    outcome = moved.node_pass("n3", moved.live_claim())
    assert (outcome.action, outcome.reason) == (Action.DONE, "volume exists")
    assert len(moved.clients["n2"].created) == before


def test_a_second_record_of_a_node_ends_too(moved):
    """An older release, whose nodes shared intents, left one after n1 had finished its own."""
    claim = moved.live_claim()
    name = f"pvc-{claim['metadata']['uid']}@n1"
    record = dict(moved.intents.intents[name])
    assert moved.node_pass("n2", claim).action is Action.DONE
    assert moved.node_pass("n1", claim).reason in {"deleted without PV", "another node's volume"}
    moved.intents.intents[name] = record
    moved.node_pass("n1", claim)
    assert moved.intents.intents == {}
