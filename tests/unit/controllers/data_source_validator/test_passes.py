"""One reconcile of a claim: its warning, and what is counted. DV-001 to DV-009, DVD-001."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest

from tests.support.fake_context import FakeWorld
from workers.controllers.data_source_validator.controller import (
    COMPONENT,
    CONTROLLER,
    MESSAGE,
    REASON,
)
from workers.engine.outcome import Action
from workers.errors import LeaseLost
from workers.kube import paths
from workers.kube.errors import ForbiddenError, NotFoundError, ServerError, Unreachable
from workers.queue.keys import Key

GROUP = "fill.example.org"
KEY = Key("data-sources", "", "shop/data", "u1")


def source(kind: str = "Backup", group: str | None = GROUP, **more: str) -> dict[str, str]:
    return {"kind": kind, "name": "x", **({"apiGroup": group} if group else {}), **more}


class World(FakeWorld):
    """A claim `shop/data`, and the existing populators."""

    def __init__(self) -> None:
        super().__init__(has_driver=False)

    def add_claim(self, ref: Any = None, *, phase: str = "Pending", **metadata: Any) -> None:
        meta = {"name": "data", "namespace": "shop", "uid": "u1", **metadata}
        spec = {"dataSourceRef": ref} if ref else {}
        self.api.add(paths.CLAIMS, {"metadata": meta, "spec": spec, "status": {"phase": phase}})

    def add_populator(self, kind: Any = "Backup", group: str = GROUP, name: str = "p") -> None:
        named = {"group": group, "kind": kind}
        self.api.add(paths.POPULATORS, {"metadata": {"name": name}, "sourceKind": named})

    def look(self) -> str:
        """Reconcile the claim, and return the reason of the outcome."""
        return self.sync(CONTROLLER, KEY).reason

    @property
    def warnings(self) -> list[tuple[str, str, str]]:
        return self.events.seen

    def counted(self, result: str) -> float:
        text = generate_latest(self.context.metrics.registry).decode()
        name = f'volume_data_source_validator_operation_count{{result="{result}"}} '
        return sum(float(one[len(name) :]) for one in text.splitlines() if one.startswith(name))


@pytest.fixture
def world() -> World:
    return World()


def test_a_kind_that_nobody_populates(world):
    """DVT-001, DV-001, DV-005, DV-009, DV-020: One warning is emitted, and nothing is written."""
    world.add_claim(source())
    assert world.look() == "warned"
    assert world.warnings == [("Warning", REASON, MESSAGE)]
    (about,) = world.events.objects
    assert (about["apiVersion"], about["kind"]) == ("v1", "PersistentVolumeClaim")
    assert (about["metadata"]["uid"], COMPONENT) == ("u1", "volume-data-source-validator")
    assert world.api.writes == []
    assert world.counted("invalid") == 1


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        *(("Other", GROUP), ("Backup", "other.example.org"), ("backup", GROUP), ("Backups", GROUP)),
        *(("Backup", "example.org"), ("Backup", None)),
        *(("PersistentVolumeClaim", "core"), ("PersistentVolumeClaim", "v1")),
        *(("VolumeSnapshot", "x.org"), ("VolumeSnapshot", None)),
        ("VolumeSnapshotContent", "snapshot.storage.k8s.io"),
        ("VolumeGroupSnapshot", "groupsnapshot.storage.k8s.io"),
    ],
)
def test_a_kind_that_is_nearly_populated_or_nearly_core(world, kind, group):
    """DVT-005, DVT-006, DV-004: Group and kind must match exactly."""
    world.add_populator()
    world.add_claim(source(kind, group))
    assert world.look() == "warned"


@pytest.mark.parametrize("namespace", ["", "shop", "elsewhere"])
def test_a_populated_kind(world, namespace):
    """DVT-002, DVT-007, DV-004, DV-008: Neither its namespace nor the source object matters."""
    world.add_populator("Other", name="a")
    world.add_populator(name="b")
    world.add_claim(source(namespace=namespace))
    assert world.look() == "populator b"
    assert (world.warnings, world.counted("populator")) == ([], 1)


@pytest.mark.parametrize(
    "ref",
    [
        None,
        source("PersistentVolumeClaim", None),
        source("PersistentVolumeClaim", ""),
        source("VolumeSnapshot", "snapshot.storage.k8s.io", namespace="elsewhere"),
    ],
)
def test_what_needs_no_populator_reads_none(world, ref):
    """DVT-003, DVT-004, DV-002, DV-003: The claim has no source, or is a clone or a restore."""
    world.add_claim(ref)
    assert world.look() == "needs no populator"
    assert (world.warnings, len(world.api.requests)) == ([], 1)


@pytest.mark.parametrize(
    "claim",
    [{"phase": "Bound"}, {"phase": "Lost"}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}],
)
def test_a_claim_that_is_filled_or_goes_gets_no_warning(world, claim):
    """DVT-013, DVD-001: A claim that is not pending or is being deleted needs no populator."""
    world.add_claim(source(), **claim)
    assert world.look() == "needs no populator"
    assert world.warnings == []


def test_a_claim_that_is_gone_or_made_again(world):
    """DVT-011: The key belongs to the deleted claim."""
    assert world.look() == "gone"
    world.add_claim(source(), uid="u2")
    assert world.look() == "needs no populator"
    assert world.warnings == []


def test_a_cluster_without_the_crd(world):
    """DVT-016, DV-006: The populators are unknown, so no warning is emitted."""
    world.add_claim(source())
    missing = NotFoundError(404, "NotFound", "the server could not find the requested resource")
    world.api.fail("get", "volumepopulators", missing)
    assert world.look() == "the API server does not serve VolumePopulators"
    assert (world.warnings, world.counted("invalid"), world.counted("error")) == ([], 0, 0)


@pytest.mark.parametrize(
    "error",
    [ForbiddenError(403, "Forbidden", "no"), ServerError(500, "", "x"), Unreachable("away")],
    ids=lambda one: type(one).__name__,
)
def test_populators_that_cannot_be_listed(world, error):
    """DVT-017, DV-007: Missing knowledge causes no warning, and the claim is retried."""
    world.add_claim(source())
    world.api.fail("get", "volumepopulators", error)
    with pytest.raises(type(error)):
        world.look()
    assert (world.warnings, world.counted("error")) == ([], 1)
    assert world.look() == "warned"


@pytest.mark.parametrize(
    "odd", [{"sourceKind": "Backup"}, {"sourceKind": None}, {}, {"sourceKind": {"kind": ["x"]}}]
)
def test_a_populator_of_an_odd_form_harms_no_other(world, odd):
    """A CRD without a schema accepts any content."""
    world.api.add(paths.POPULATORS, {"metadata": {"name": "a"}, **odd})
    world.add_populator(name="b")
    world.add_claim(source())
    assert world.look() == "populator b"


def test_an_owner_that_lost_its_lease_says_nothing(world):
    """G9: The key has another owner."""
    world.add_claim(source())
    world.steps.loses_before = 0
    with pytest.raises(LeaseLost):
        world.look()
    assert (world.warnings, world.steps.reached) == ([], ["warn"])


def test_the_populator_goes_and_comes_back(world):
    """DVT-010, DVD-006: Each reconcile reports the present state."""
    world.add_claim(source())
    world.add_populator()
    assert world.look() == "populator p"
    world.api.drop(paths.POPULATORS, "p")
    assert world.look() == "warned"
    world.add_populator(name="p")
    assert world.look() == "populator p"
    assert len(world.warnings) == 1


def test_a_pass_ends_its_key(world):
    """No retry is needed for the claim."""
    world.add_claim(source())
    assert world.sync(CONTROLLER, KEY).action is Action.DONE
    assert CONTROLLER.locks(KEY, None) == ()
    assert CONTROLLER.limits(None) == {"data-sources": 10}
