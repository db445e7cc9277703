"""Which worker's key is added when a capacity object was deleted (CAP-030, C-098)."""

from __future__ import annotations

import msgspec
import pytest

from workers.controllers.capacity.rules import WATCHES, CapacityRules
from workers.kube import paths
from workers.kube.objects import AnyObject
from workers.spec import Scope

MANAGER = "external-provisioner"
DRIVER_LABEL = "csi.storage.k8s.io/drivername"
MANAGER_LABEL = "csi.storage.k8s.io/managed-by"


def record(name, *, queue_name="", namespace="storage", managed_by=MANAGER):
    place = {"namespace": namespace, "managed_by": managed_by} if namespace else None
    return {"name": name, "queue_name": queue_name or name, "capacity": place}


RECORDS = (
    record("a"),
    record("b"),
    record("c", queue_name="c@n1", managed_by=f"{MANAGER}-n1"),
    record("c", queue_name="c@n2", managed_by=f"{MANAGER}-n2"),
    record("d", namespace="elsewhere"),
    record("none", namespace=""),
)


def told(driver, *, namespace="storage", manager=MANAGER, labels=True):
    """Return the keys of an object that is gone."""
    rules = CapacityRules()
    assert list(rules.set_drivers(RECORDS)) == []
    metadata = {"name": "csisc-x", "namespace": namespace, "uid": "u1"}
    metadata["labels"] = {DRIVER_LABEL: driver, MANAGER_LABEL: manager} if labels else None
    gone = msgspec.convert({"metadata": metadata}, AnyObject)
    return [key.text for key in rules.gone(paths.CAPACITIES, gone)]


@pytest.mark.parametrize(
    ("driver", "fields", "expected"),
    [
        pytest.param("a", {}, ["a"], id="its driver's worker alone"),
        pytest.param("x", {}, [], id="nobody serves it"),
        pytest.param("a", {"namespace": "other"}, [], id="another namespace"),
        pytest.param("d", {"namespace": "elsewhere"}, ["d"], id="a namespace of its own"),
        pytest.param("a", {"manager": "someone"}, [], id="another manager"),
        pytest.param("c", {"manager": f"{MANAGER}-n2"}, ["c@n2"], id="CAP-004 the node's worker"),
        pytest.param("c", {}, [], id="CAP-004 no node's"),
        pytest.param("none", {}, [], id="its driver publishes nothing"),
        pytest.param("a", {"labels": False}, [], id="no labels"),
    ],
)
def test_c098_only_the_worker_that_wrote_it_hears_of_it(driver, fields, expected):
    assert told(driver, **fields) == [f"capacity|{name}|gone:u1|" for name in expected]


def test_what_is_there_is_the_poll_s_matter():
    """Existing objects add no key and are not kept: the poll handles them."""
    rules = CapacityRules()
    rules.set_drivers(RECORDS)
    labels = {DRIVER_LABEL: "a", MANAGER_LABEL: MANAGER}
    seen = msgspec.convert({"metadata": {"namespace": "storage", "labels": labels}}, AnyObject)
    assert list(rules.seen(paths.CAPACITIES, seen, is_listed=True)) == []
    assert list(rules.end_list(paths.CAPACITIES)) == []
    assert list(rules.all_keys()) == []


def test_one_watch_for_each_place_on_metadata_alone():
    """CAP-030: Drivers that share namespace and manager share the watch."""
    (watch,) = WATCHES
    assert (watch.resource, watch.metadata_only) == (paths.CAPACITIES, True)
    label = f"{MANAGER_LABEL}={MANAGER}"
    assert list(watch.scopes(RECORDS)) == [
        Scope("elsewhere", label),
        Scope("storage", label),
        Scope("storage", f"{label}-n1"),
        Scope("storage", f"{label}-n2"),
    ]
    assert list(watch.scopes(())) == []
