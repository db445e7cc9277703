"""Which events add which claim's key: DV-001, DVD-001 to DVD-005."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from workers.controllers.data_source_validator.rules import DataSourceRules
from workers.controllers.data_source_validator.spec import SPEC
from workers.kube import paths
from workers.kube.objects import Claim, Populator
from workers.spec import Forget

GROUP = "fill.example.org"
KEY = "data-sources||shop/data|u1"
CORE = [
    {"kind": "PersistentVolumeClaim", "name": "x"},
    {"kind": "VolumeSnapshot", "name": "x", "apiGroup": "snapshot.storage.k8s.io"},
]


def claim(ref: Any = "Backup", phase: str = "Pending", **meta: Any) -> Claim:
    metadata = {"name": "data", "namespace": "shop", "uid": "u1", **meta}
    if isinstance(ref, str):
        ref = {"apiGroup": GROUP, "kind": ref, "name": "x"}
    spec = {"dataSourceRef": ref}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, Claim)


def populator(kind: str = "Backup", name: str = "p") -> Populator:
    body = {"metadata": {"name": name}, "sourceKind": {"group": GROUP, "kind": kind}}
    return msgspec.convert(body, Populator)


class World:
    """The rules, with their results as text."""

    def __init__(self) -> None:
        self.rules = DataSourceRules()

    def seen(self, item: Claim | Populator, *, is_listed: bool = False) -> list[str]:
        resource = paths.CLAIMS if isinstance(item, Claim) else paths.POPULATORS
        return texts(self.rules.seen(resource, item, is_listed=is_listed))

    def gone(self, item: Claim | Populator) -> list[str]:
        resource = paths.CLAIMS if isinstance(item, Claim) else paths.POPULATORS
        return texts(self.rules.gone(resource, item))

    def listed(self, resource: paths.Resource, *items: Claim | Populator) -> list[str]:
        """Process a complete list, and return the keys that it adds."""
        self.rules.begin_list(resource)
        told = [one for item in items for one in self.seen(item, is_listed=True)]
        return told + texts(self.rules.end_list(resource))

    def waiting(self) -> list[str]:
        return texts(self.rules.all_keys())


def texts(told: Any) -> list[str]:
    return [f"forget {one.key.text}" if isinstance(one, Forget) else one.text for one in told]


@pytest.fixture
def world() -> World:
    """Rules that know the populators: none."""
    world = World()
    assert world.listed(paths.POPULATORS) == []
    return world


def test_a_claim_is_looked_at_once(world):
    """DVD-003, DVT-012: Its updates and further lists add no key."""
    assert world.seen(claim()) == [KEY]
    assert world.seen(claim(resourceVersion="2", annotations={"a": "b"})) == []
    assert world.listed(paths.CLAIMS, claim()) == []
    assert world.waiting() == [KEY]


def test_a_claim_that_is_made_again_is_another(world):
    """This holds even if its deletion was missed."""
    world.seen(claim())
    new = KEY.replace("u1", "u2")
    assert world.seen(claim(uid="u2")) == [f"forget {KEY}", new]
    assert world.waiting() == [new]


@pytest.mark.parametrize("ref", [None, *CORE])
def test_what_needs_no_populator_is_no_work(world, ref):
    """DVD-005: It gets no key."""
    assert world.seen(claim(ref)) == []
    assert world.waiting() == []


@pytest.mark.parametrize(
    "change", [{"phase": "Bound"}, {"phase": "Lost"}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}]
)
def test_a_claim_that_is_filled_or_goes_waits_no_more(world, change):
    """DVD-001: Such a claim gets no key any more."""
    assert world.seen(claim(**change)) == []
    world.seen(claim())
    assert world.seen(claim(**change)) == []
    assert world.waiting() == []


def test_a_claim_that_is_gone_is_forgotten(world):
    """Only the claim with this UID is dropped, not another claim of that name."""
    world.seen(claim())
    assert world.gone(claim()) == [f"forget {KEY}"]
    assert (world.gone(claim()), world.waiting()) == ([], [])


def test_a_claim_that_went_unseen_is_forgotten_by_the_list(world):
    world.seen(claim())
    world.seen(claim(name="b", uid="u2"))
    world.seen(claim(name="c", uid="u3"))
    told = world.listed(paths.CLAIMS, claim(name="b", uid="u2"))
    assert told == [f"forget {KEY.replace('u1', 'u3').replace('/data', '/c')}", f"forget {KEY}"]
    assert len(world.waiting()) == 1
    assert world.listed(paths.CLAIMS, claim(name="b", uid="u2")) == []


@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.parametrize(
    ("again", "is_queued"),
    [
        pytest.param({}, True, id="open"),
        pytest.param({"phase": "Bound"}, False, id="bound"),
        pytest.param({"ref": None}, False, id="of no source"),
        pytest.param({"ref": CORE[0]}, False, id="of a kind of Kubernetes"),
        pytest.param({"deletionTimestamp": "2026-01-01T00:00:00Z"}, False, id="going"),
    ],
)
def test_a_claim_that_was_made_again_unseen_is_forgotten(world, again, is_queued, is_listed):
    """Its key has the UID of the deleted claim."""
    world.seen(claim())
    item = claim(uid="u9", **again)
    told = world.listed(paths.CLAIMS, item) if is_listed else world.seen(item)
    new = KEY.replace("u1", "u9")
    assert told == [f"forget {KEY}", *([new] if is_queued else ())]
    assert world.waiting() == ([new] if is_queued else [])


def test_a_populator_that_goes_wakes_the_claims_of_its_kind(world):
    """DVD-002: Those claims may need a warning now."""
    world.seen(populator())
    world.seen(claim())
    world.seen(claim("Other", name="other"))
    assert world.gone(populator()) == [KEY]
    assert world.gone(populator()) == []


def test_another_populator_of_the_kind_keeps_them_asleep(world):
    world.seen(populator(name="a"))
    world.seen(populator(name="b"))
    world.seen(claim())
    assert world.gone(populator(name="a")) == []
    assert world.gone(populator(name="b")) == [KEY]


def test_a_populator_that_is_changed_to_another_kind(world):
    world.seen(populator())
    world.seen(claim())
    assert world.seen(populator()) == []
    assert world.seen(populator("Other")) == [KEY]
    assert world.seen(populator()) == []


def test_a_populator_that_comes_wakes_nobody(world):
    """DV-010, DVT-009: There is nothing to report."""
    world.seen(claim())
    assert world.seen(populator()) == []
    assert world.waiting() == []


def test_a_list_of_populators_looks_at_all_that_nobody_populates(world):
    """DV-006: The CRD may be new, and deletions may have been missed."""
    world.seen(claim())
    world.seen(claim("Other", name="other"))
    assert world.listed(paths.POPULATORS, populator()) == ["data-sources||shop/other|u1"]
    assert world.listed(paths.POPULATORS) == [KEY, "data-sources||shop/other|u1"]


@pytest.mark.parametrize("first", ["claims", "populators"])
def test_either_list_may_come_first(first):
    """DVT-008: Each claim is queued once, so no warning is repeated at the start."""
    world, claims = World(), (claim(), claim("Other", name="other"))
    keys = [KEY, "data-sources||shop/other|u1"]
    if first == "claims":
        assert (world.listed(paths.CLAIMS, *claims), world.waiting()) == ([], [])
        assert world.listed(paths.POPULATORS, populator()) == keys
    else:
        assert world.listed(paths.POPULATORS, populator()) == []
        assert world.listed(paths.CLAIMS, *claims) == keys
    assert world.waiting() == keys[1:]


def test_no_claim_is_queued_while_populators_are_not_served():
    """DV-006: The API server without the CRD never sends a list of populators."""
    world = World()
    assert (world.seen(claim()), world.seen(claim(uid="u2"))) == ([], [f"forget {KEY}"])
    assert (world.gone(claim(uid="u2")), world.waiting()) == (
        [f"forget {KEY.replace('u1', 'u2')}"],
        [],
    )


def test_a_thousand_claims_cost_a_thousand_keys_and_nothing_afterwards(world):
    """DVT-014: Bound claims leave no data behind."""
    names = [f"d{number}" for number in range(1000)]
    assert len(world.listed(paths.CLAIMS, *(claim(name=name) for name in names))) == 1000
    assert len(world.waiting()) == 1000
    assert [one for name in names for one in world.seen(claim(name=name, phase="Bound"))] == []
    assert world.waiting() == []


def test_what_a_claim_calls_a_kind_takes_no_room(world):
    """The API server accepts any text as a kind; a megabyte of text is not kept."""
    world.seen(claim("K" * 1_000_000))
    ((_, kept),) = world.rules._claims.values()
    assert len(kept.kind) < 100
    assert world.listed(paths.POPULATORS, populator("K" * 1_000_000)) == [KEY]


def test_no_driver_matters(world):
    assert (list(world.rules.set_drivers([{"name": "d"}])), SPEC.needs_driver) == ([], False)
