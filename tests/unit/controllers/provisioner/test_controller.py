"""The provisioner's answers to the engine: locks, limits, sweeps and retry limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from csi_client.errors import CsiError
from tests.support.fake_cluster import CAPABILITIES, DRIVER, TOPOLOGY, World
from workers.config.settings import ProvisionSettings, Settings
from workers.controllers.provisioner import controller as module
from workers.controllers.provisioner import explain
from workers.controllers.provisioner.backend import CSI, CsiBackend, backend_of
from workers.controllers.provisioner.claims import claim_volume
from workers.controllers.provisioner.clusters import Clusters
from workers.controllers.provisioner.controller import CONTROLLER
from workers.engine.controller import Due
from workers.engine.outcome import Action, done
from workers.kube.errors import ForbiddenError
from workers.queue.keys import Key, claim_key, sweep_key, volume_key
from workers.queue.locks import Lock
from workers.topology.segments import segment_text

CLAIM = claim_key(DRIVER, "default", "data", "u1")
VOLUME = volume_key(DRIVER, "pv1", "default")
CLONING = Key("cloning", DRIVER, "default/src", "u2")
SWEEP = sweep_key(DRIVER)
SNAPSHOTS = CAPABILITIES | {"CREATE_DELETE_SNAPSHOT"}


@pytest.mark.parametrize(
    ("key", "has_driver", "expected"),
    [
        pytest.param(CLAIM, True, ("pvc-u1",), id="the name its volume will have"),
        pytest.param(CLAIM, False, (), id="a name that only the driver's flags tell"),
        pytest.param(VOLUME, True, ("pv1",), id="the volume's own name"),
        pytest.param(VOLUME, False, ("pv1",), id="the volume's own name, driver away"),
        pytest.param(CLONING, True, (), id="clean-up of claims"),
        pytest.param(SWEEP, True, (), id="clean-up of snapshots"),
    ],
)
def test_p121_creation_and_deletion_lock_the_volume_s_name(world, key, has_driver, expected):
    driver = world.driver if has_driver else None
    assert CONTROLLER.locks(key, driver) == tuple(map(Lock, expected))


@pytest.mark.parametrize(
    ("controller", "seconds", "is_due"),
    [
        pytest.param(SNAPSHOTS, 300.0, True, id="P-240"),
        pytest.param(SNAPSHOTS, 0.0, False, id="C-127 switched off"),
        pytest.param(CAPABILITIES, 300.0, False, id="it cuts no snapshots"),
        pytest.param(None, 300.0, False, id="no driver"),
    ],
)
def test_p240_the_sweep_comes_back_by_itself(controller, seconds, is_due):
    settings = Settings(provision=ProvisionSettings(snapshot_orphan_sweep_seconds=seconds))
    world = World(settings, controller=frozenset(controller or ()))
    driver = None if controller is None else world.driver
    due = tuple(CONTROLLER.periodic(world.runtime, driver))
    assert due == ((Due(SWEEP, 300.0),) if is_due else ())


def test_each_kind_has_its_limit():
    """Creations and deletions each have a limit of `--worker-threads`; one sweep runs at a time."""
    provision = ProvisionSettings(worker_threads=7, cloning_protection_threads=3)
    limits = CONTROLLER.limits(World(Settings(provision=provision)).driver)
    assert limits == {"claims": 7, "volumes": 7, "cloning": 3, "sweep": 1}


@pytest.mark.parametrize("has_topology", [True, False])
def test_rules_and_rehearsals_know_how_the_driver_provisions(has_topology):
    provision = ProvisionSettings(volume_name_prefix="vol", strict_topology=True)
    settings = Settings(provision=provision)
    world = World(settings, plugin=TOPOLOGY) if has_topology else World(settings)
    record = CONTROLLER.record(world.driver)
    assert record["topology"] is has_topology
    assert ProvisionSettings(**record["rules"]) == provision


def test_a_driver_that_cannot_create_is_served_all_the_same():
    """An event on each claim says what the driver cannot do."""
    assert CONTROLLER.serves(World(controller=frozenset()).driver) is True


@pytest.mark.parametrize("kind", ["claims", "volumes", "cloning", "sweep"])
def test_each_kind_has_its_own_pass(world, monkeypatch, kind):
    passes = {name: lambda *_, word=name: done(word) for name in module._PASSES}
    monkeypatch.setattr(module, "_PASSES", passes)
    key = Key(kind, DRIVER, "x")
    unused: Any = cast("Any", None)
    assert CONTROLLER.sync(world.runtime, world.driver, key, unused).reason == kind


class Impatient(CsiBackend):
    """A plug-in whose retry limit is three failures for a claim and five for a volume."""

    def threshold(self, kind):
        return {"claims": 3, "volumes": 5}[kind]


def claim_pass(world):
    lease = world.lease(CLAIM, claim_volume(world.driver, CLAIM))
    return CONTROLLER.sync(world.runtime, world.driver, CLAIM, lease)


@pytest.mark.parametrize(("backend", "threshold"), [(None, 0), (Impatient(), 3)])
def test_l016_a_failed_attempt_carries_the_backend_s_threshold(world, claim, backend, threshold):
    """A CSI driver is called without a retry limit, as by csi-provisioner."""
    object.__setattr__(world.driver, "backend", backend)
    world.client.answers = [CsiError(13, "broken")]
    outcome = claim_pass(world)
    assert (outcome.action, outcome.give_up_after) == (Action.RETRY, threshold)


def test_l080_a_volume_that_exists_is_saved_without_end(world, claim):
    """The plug-in's retry limit does not apply: giving up would lose the volume."""
    object.__setattr__(world.driver, "backend", Impatient())
    world.kube.fail["create_volume"] = [ForbiddenError(403, "Forbidden", "denied by policy")]
    outcome = claim_pass(world)
    assert (outcome.action, outcome.give_up_after) == (Action.RETRY, 0)


def test_a_driver_without_a_plug_in_is_asked_by_grpc(world):
    """L-002, L-016, L-073: CSI drivers have finalizers, no retry limit and no deletion guard."""
    assert backend_of(world.driver) is CSI
    object.__setattr__(world.driver, "backend", plug_in := Impatient())
    assert backend_of(world.driver) is plug_in
    assert (CSI.add_finalizer, CSI.is_guard_willing({})) == (True, True)
    assert [CSI.threshold(kind) for kind in ("claims", "volumes")] == [0, 0]


class Catalog:
    """Returns the same mapping until an object changes, as the shared cache does."""

    def __init__(self):
        self.kinds = {"csinodes": {}, "nodes": {}}

    def all(self, kind, state):
        assert state == "state"
        return self.kinds[kind]


def test_the_topology_is_built_once_for_each_state_of_the_catalog():
    catalog = Catalog()
    clusters = Clusters(cast("Any", catalog))

    def current():
        return clusters.current(cast("Any", "state"))

    empty = current()
    assert current() is empty
    assert empty.segments(DRIVER) == frozenset()
    catalog.kinds["csinodes"] = {"n1": {DRIVER: ["zone"]}}
    assert current() is not empty
    catalog.kinds["nodes"] = {"n1": {"zone": "z1"}}
    known = current()
    assert {segment_text(one) for one in known.segments(DRIVER)} == {"zone=z1"}
    assert current() is known


@pytest.mark.parametrize(
    ("noun", "cause", "has_claim"), [("pvc", "claim", True), ("pv", "volume", False)]
)
def test_explain_answers_for_claims_and_for_volumes(monkeypatch, noun, cause, has_claim):
    """Each noun is explained by its own facts; the explanation of a volume shows no claim."""
    facts = SimpleNamespace(state="s", claim="the claim", volume="the volume")
    gatherer = SimpleNamespace(
        claim=lambda namespace, name: (namespace, name) == ("ns", "x") and facts,
        volume=lambda name: name == "x" and facts,
    )
    monkeypatch.setattr(explain, "Gatherer", lambda _tools: gatherer)
    monkeypatch.setattr(explain, "claim_cause", lambda found: found is facts and "claim")
    monkeypatch.setattr(explain, "volume_cause", lambda found: found is facts and "volume")
    found = explain.explain(cast("Any", None), noun, "ns", "x")
    assert (found.cause, found.claim) == (cause, "the claim" if has_claim else None)
