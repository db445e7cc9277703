"""What the API server remembers of a claim will do to begin with, and for nothing else."""

from __future__ import annotations

from copy import deepcopy

import pytest

from csi_client.errors import CsiError
from tests.support.fake_cluster import DRIVER, TOPOLOGY, World
from workers.config.settings import NodeSettings, Settings
from workers.constants import ANN_SELECTED_NODE
from workers.engine.outcome import Action
from workers.kube.errors import ForbiddenError, Unreachable
from workers.topology.cluster import ClusterTopology

DOMAIN = "pvc-u1"
PLACE = ("persistentvolumeclaims", "default", "data")
ABORTED = CsiError(10, "told to fail")
DENIED = ForbiddenError(403, "Forbidden", "denied by policy")


def version(item):
    return int(item["metadata"]["resourceVersion"])


@pytest.fixture
def lagging(world, claim) -> World:
    """An API server whose memory does not go on from the claim's first version."""
    world.kube.remembered[PLACE] = deepcopy(claim)
    world.seen = version(claim)
    return world


def deleted(world):
    world.drop_claim()


def bound_by_hand(world):
    world.kube.add(PLACE[0], {**world.live_claim(), "spec": {"volumeName": "by-hand"}})


CHANGES = [deleted, bound_by_hand]


def test_a_first_pass_asks_for_what_was_told_of_its_claim(lagging, claim):
    """One read, of a version that is no older."""
    assert lagging.claim_pass(claim).finish_intent
    assert lagging.kube.at_least == [version(claim)]


def test_of_a_claim_that_nothing_was_told_of_it_asks_how_it_is_now(world, claim):
    """A relist, a Redis that lost its data, a claim that has waited for minutes."""
    assert world.seen == 0
    world.claim_pass(claim)
    assert world.kube.at_least == [0]


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_since_ends_as_if_it_had_changed_after_the_read(lagging, claim, change):
    """The volume is saved for a claim that does not want it, as when the change came during the
    call: kube-controller-manager releases the PV, and its key comes to us. Nothing else stays.
    """
    change(lagging)
    outcome = lagging.claim_pass(claim)
    assert (outcome.action, outcome.finish_intent) == (Action.DONE, True)
    assert set(lagging.volumes()) == {DOMAIN}
    assert (lagging.intents.intents, lagging.intents.unsaved) == ({}, {})
    # The event of the change.
    lagging.seen += 1000
    assert lagging.claim_pass(claim).action is Action.DONE
    assert len(lagging.client.created) == 1
    assert lagging.intents.intents == {}


def aborted(world):
    """An attempt whose end is not known."""
    world.client.answers = [ABORTED, ABORTED]


def unsaved(world):
    world.kube.fail["create_volume"] = [DENIED, DENIED]


def failed(world):
    """Without a record: it failed before any call."""
    world.client.answers = [CsiError(3, "no such class parameter")]
    world.fails = 1


@pytest.mark.parametrize("earlier", [aborted, unsaved, failed])
def test_who_goes_on_with_an_attempt_asks_how_the_claim_is_now(lagging, claim, earlier):
    """A decision on an older state would be one on what the attempt itself changed since."""
    earlier(lagging)
    lagging.seen = 0
    assert lagging.claim_pass(claim).action is Action.RETRY
    lagging.kube.at_least.clear()
    lagging.seen = version(claim)
    lagging.claim_pass(claim)
    assert lagging.kube.at_least[0] == 0


def test_so_does_who_comes_after_it_was_saved(lagging, claim):
    """The version of the PV that was made is none of the claim's."""
    lagging.claim_pass(claim)
    lagging.intents.saved.add(DOMAIN)
    lagging.kube.at_least.clear()
    assert lagging.claim_pass(claim).action is Action.DONE
    assert lagging.kube.at_least[0] == 0
    assert len(lagging.client.created) == 1


def test_an_api_server_that_is_away_is_asked_once(lagging, claim):
    lagging.kube.fail["get_claim"] = [Unreachable("no answer")]
    with pytest.raises(Unreachable):
        lagging.claim_pass(claim)
    assert lagging.kube.at_least == [version(claim)]


@pytest.mark.parametrize("is_node", [False, True])
def test_a_node_with_a_storage_of_its_own_asks_how_it_is_now(is_node):
    """Two nodes that believe to be the chosen one would make a volume each."""
    node = NodeSettings(enabled=is_node, node_name="n1")
    world = World(settings=Settings(node=node))
    world.add_class()
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: "n1"})
    world.seen = version(claim)
    world.claim_pass(claim)
    assert world.kube.at_least[0] == (0 if is_node else version(claim))


def test_a_claim_given_back_to_the_scheduler_may_be_tried_once_more():
    """L-052: its node was taken off, and the key comes again before that write is known. Whatever
    comes of it is of the claim's own name, as with the sidecars, whose copies lag as well.
    """
    world = World(plugin=TOPOLOGY)
    world.clusters.topology = ClusterTopology({"n1": {DRIVER: ["zone"]}}, {"n1": {"zone": "z1"}})
    world.add_class(volumeBindingMode="WaitForFirstConsumer")
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: "n1"})
    world.kube.remembered[PLACE] = deepcopy(claim)
    world.seen = version(claim)
    world.client.answers = [CsiError(8, "full"), CsiError(8, "full")]
    assert [world.claim_pass(claim).reason for _ in range(2)] == ["rescheduled"] * 2
    assert ANN_SELECTED_NODE not in world.live_claim()["metadata"]["annotations"]
    assert world.claim_pass(claim).finish_intent
    assert set(world.volumes()) == {DOMAIN}
    assert world.intents.intents == {}
