"""Node deployment: what one node's attempt left is no other node's to go on with."""

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
from workers.controllers.provisioner.claims import claim_domain, sync_claim
from workers.controllers.provisioner.race import Wait
from workers.engine.outcome import Action
from workers.queue.keys import claim_key

TIMEOUT = CsiError(errors.DEADLINE_EXCEEDED, "late")


class Nodes(World):
    """Two nodes of one driver, each with a storage of its own, over one API server and Redis."""

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
        lease = self.lease(key, claim_domain(driver, key))
        outcome = sync_claim(self.runtime, driver, key, lease)
        self._settle(lease, outcome)
        return outcome


@pytest.mark.parametrize("is_deleted", [False, True], ids=["claim waits", "claim is gone"])
def test_a_late_look_of_another_node_makes_no_second_volume(is_deleted):
    """Both raced for the claim; n1 won, made the volume, and its answer is lost."""
    world = Nodes()
    world.add_class()
    claim = world.add_claim()
    outcome = world.node_pass("n2", claim)
    assert (outcome.action, outcome.reason) == (Action.RETRY, "waits to become owner")
    world.memo = Wait(0, time.time() - 1).text()
    assert world.node_pass("n1", claim).reason == "became owner"
    world.clients["n1"].answers = [TIMEOUT]
    world.node_pass("n1", world.live_claim())
    assert len(world.clients["n1"].created) == 1  # and its volume may be there
    if is_deleted:
        world.drop_claim()
    # n2's delayed key is due; nobody took it out of the queue.
    world.memo = outcome.memo
    world.node_pass("n2", claim)
    assert world.clients["n2"].created == []
    assert world.intents.intents[f"pvc-{claim['metadata']['uid']}"]["key"].find("@n1") > 0


def test_without_a_record_the_other_node_leaves_it_alone():
    """Control: the gate works while there is no record."""
    world = Nodes()
    world.add_class()
    claim = world.add_claim(annotations={ANN_SELECTED_NODE: "n1"})
    assert world.node_pass("n2", claim).action is Action.DONE
    assert world.clients["n2"].created == []
