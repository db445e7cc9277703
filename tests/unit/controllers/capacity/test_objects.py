"""CSIStorageCapacity objects: names, contents, and when they are written."""

from __future__ import annotations

import re
from copy import deepcopy
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csi_client.messages import GetCapacityResponse
from workers.controllers.capacity.items import Item
from workers.controllers.capacity.objects import (
    Publisher,
    Sizes,
    capacity_request,
    desired_object,
    item_of,
    managed_by,
    object_names,
    sizes_of,
    updated_object,
)
from workers.topology.terms import make_term

GIB = 2**30
DRIVER = "d.example.com"
ITEM = Item("fast", make_term({"zone": "z1"}))
POD = {"apiVersion": "v1", "kind": "Pod", "name": "prov", "uid": "u1", "controller": True}
PUBLISHER = Publisher(driver_name=DRIVER, namespace="ns")
OWNED = Publisher(driver_name=DRIVER, namespace="ns", owner=POD)


def published(publisher=PUBLISHER, sizes=Sizes(GIB), item=ITEM):  # noqa: B008 - frozen value
    """Return the object as the API server stores it after creation."""
    created = desired_object(publisher, item, sizes, "csisc-abcde")
    created["metadata"] |= {"uid": "o1", "resourceVersion": "7"}
    if not item.segment:
        del created["nodeTopology"]["matchLabels"]
    return created


def test_c088_object_content():
    """CAP-002: The content is as recorded in cap-07, where name and UID are masked."""
    assert desired_object(OWNED, ITEM, Sizes(GIB), "csisc-abcde") == {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIStorageCapacity",
        "metadata": {
            "generateName": "csisc-",
            "name": "csisc-abcde",
            "namespace": "ns",
            "labels": {
                "csi.storage.k8s.io/drivername": DRIVER,
                "csi.storage.k8s.io/managed-by": "external-provisioner",
            },
            "ownerReferences": [POD],
        },
        "storageClassName": "fast",
        "nodeTopology": {"matchLabels": {"zone": "z1"}},
        "capacity": "1Gi",
    }


def test_c090_no_owner():
    """CAP-002: Level -1 adds no owner."""
    body = desired_object(PUBLISHER, ITEM, Sizes(GIB), "n")
    assert "ownerReferences" not in body["metadata"]


def test_node_topology_is_present_even_if_empty():
    """CAP-002: Without it the object would match no node."""
    assert desired_object(PUBLISHER, Item("s", ()), Sizes(1), "n")["nodeTopology"] == {
        "matchLabels": {}
    }


def test_zero_capacity_is_published():
    """CAP-006: The capacity is "0", as recorded in cap-04."""
    assert desired_object(PUBLISHER, ITEM, Sizes(0), "n")["capacity"] == "0"


def test_v1beta1_where_v1_is_not_served():
    """CAP-002: The object has the API version that the cluster serves."""
    old = Publisher(driver_name=DRIVER, namespace="ns", api_version="storage.k8s.io/v1beta1")
    assert desired_object(old, ITEM, Sizes(0), "n")["apiVersion"] == "storage.k8s.io/v1beta1"


def test_c089_maximum_volume_size_comes_and_goes():
    """CAP-002, CAP-040: The field follows the driver's answer, as recorded in cap-01 and cap-14."""
    with_maximum = published(sizes=Sizes(3 * GIB, GIB))
    assert with_maximum["maximumVolumeSize"] == "1Gi"
    without = updated_object(PUBLISHER, with_maximum, Sizes(3 * GIB))
    assert without is not None
    assert "maximumVolumeSize" not in without
    again = updated_object(PUBLISHER, without, Sizes(3 * GIB, 0))
    assert again is not None
    assert again["maximumVolumeSize"] == "0"


def test_c092_nothing_changed_nothing_written():
    """CAP-040.5: A poll of an unchanged cluster costs no API request."""
    assert updated_object(OWNED, published(OWNED), Sizes(GIB)) is None


@pytest.mark.parametrize("text", ["1500M", "1500000000", "1500000k"])
def test_c101_sizes_are_compared_by_value(text):
    """CAP-040.5: The API server stores 1500000000 as 1500M."""
    existing = published() | {"capacity": text}
    assert updated_object(PUBLISHER, existing, Sizes(1500000000)) is None


@pytest.mark.parametrize("text", [None, "lots"])
def test_unreadable_capacity_is_replaced(text):
    """An object that was damaged by hand must not block the item."""
    updated = updated_object(PUBLISHER, published() | {"capacity": text}, Sizes(5))
    assert updated is not None
    assert updated["capacity"] == "5"


def test_c093_c108_update_keeps_identity_and_revision():
    """CAP-040.6: The PUT has the known resourceVersion, and the input object stays unchanged."""
    existing = published()
    before = deepcopy(existing)
    updated = updated_object(PUBLISHER, existing, Sizes(5))
    assert updated == before | {"capacity": "5"}
    assert existing == before


OTHER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "u2"}
STALE = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": "o",
    "uid": "u3",
    "controller": True,
}


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        pytest.param([], [POD], id="C-094 appended"),
        pytest.param([OTHER], [OTHER, POD], id="C-094 others kept"),
        pytest.param([STALE, OTHER], [OTHER, POD], id="CAP-061 stale controller replaced"),
        pytest.param([POD | {"controller": False}], [POD], id="ours without controller flag"),
    ],
)
def test_owner_is_added_even_if_sizes_are_equal(references, expected):
    """CAP-040.5, CAP-061: The API server would refuse two controllers forever."""
    existing = published()
    existing["metadata"]["ownerReferences"] = references
    updated = updated_object(OWNED, existing, Sizes(GIB))
    assert updated is not None
    assert updated["metadata"]["ownerReferences"] == expected
    assert updated_object(OWNED, updated, Sizes(GIB)) is None


def test_c094_no_owner_configured_keeps_references():
    """CAP-061: A change to level -1 removes nothing."""
    assert updated_object(PUBLISHER, published(OWNED), Sizes(GIB)) is None
    updated = updated_object(PUBLISHER, published(OWNED), Sizes(1))
    assert updated is not None
    assert updated["metadata"]["ownerReferences"] == [POD]


def test_c107_empty_segment_read_back_from_the_api_is_the_wanted_one():
    """CAP-051: csi-provisioner deleted and re-created it at each poll."""
    item = Item("fast", ())
    existing = published(item=item)
    assert existing["nodeTopology"] == {}
    assert item_of(existing) == item
    del existing["nodeTopology"]
    assert item_of(existing) == item


def test_selectors_are_compared_without_order():
    """CAP-051: The order of the labels does not matter."""
    one = {"nodeTopology": {"matchLabels": {"b": "2", "a": "1"}}, "storageClassName": "s"}
    assert item_of(one) == Item("s", make_term({"a": "1", "b": "2"}))


def test_match_expressions_are_not_ours():
    """CAP-051: The publisher never writes match expressions, so such an object is not its own."""
    existing = published()
    existing["nodeTopology"]["matchExpressions"] = [{"key": "a", "operator": "Exists"}]
    assert item_of(existing) is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({}, True, id="ours"),
        pytest.param({"csi.storage.k8s.io/managed-by": "someone"}, False, id="C-096 other manager"),
        pytest.param({"csi.storage.k8s.io/managed-by": None}, False, id="C-096 no manager"),
        pytest.param({"csi.storage.k8s.io/drivername": "x"}, False, id="other driver"),
    ],
)
def test_manages(change, expected):
    """CAP-003, CAP-052: Both labels must be those of the publisher."""
    existing = published()
    existing["metadata"]["labels"] |= change
    assert PUBLISHER.manages(existing) is expected
    assert PUBLISHER.can_adopt(existing, ITEM) is expected


def test_objects_of_other_namespaces_are_not_ours():
    """CAP-003: Only objects in the publisher's namespace count."""
    existing = published()
    existing["metadata"]["namespace"] = "elsewhere"
    assert not PUBLISHER.manages(existing)


def test_objects_of_other_items_are_not_adopted():
    """M-014: The same name alone is no match."""
    assert not PUBLISHER.can_adopt(published(), Item("slow", ITEM.segment))


def test_m014_names_are_the_same_in_every_worker_and_look_generated():
    """M-014: AlreadyExists then means "adopt"; the pattern is csi-provisioner's."""
    names = list(object_names(PUBLISHER, ITEM))
    assert names == list(object_names(OWNED, ITEM))
    assert len(set(names)) == len(names) > 1
    assert all(re.fullmatch(r"csisc-[a-z0-9]{5}", name) for name in names)


def test_m014_names_differ_by_driver_manager_and_item():
    """Objects of several drivers and nodes share a namespace."""
    others = [
        (PUBLISHER, ITEM),
        (PUBLISHER, Item("slow", ITEM.segment)),
        (Publisher(driver_name="x", namespace="ns"), ITEM),
        (Publisher(driver_name=DRIVER, namespace="ns", managed_by="m"), ITEM),
    ]
    assert len({next(object_names(*one)) for one in others}) == len(others)


@given(st.lists(st.integers(0, 30), min_size=2, max_size=30, unique=True))
def test_colliding_items_find_names_of_their_own(numbers):
    """M-014: Probing ends for any set of taken names that is smaller than the number of probes."""
    items = [Item("s", make_term({"n": str(number)})) for number in numbers]
    taken = set(islice(object_names(PUBLISHER, items[0]), 3))
    for item in items:
        free = next(name for name in object_names(PUBLISHER, item) if name not in taken)
        taken.add(free)
    assert len(taken) == len(items) + 3


@pytest.mark.parametrize(
    ("suffix", "base", "expected"),
    [
        pytest.param("node", None, "external-provisioner-node", id="C-111 short"),
        pytest.param("node", "", "node", id="C-111 empty base"),
        pytest.param(
            "node" + 38 * "a", None, "external-provisioner-node" + 38 * "a", id="C-111 exact fit"
        ),
        pytest.param(
            "node" + 39 * "a", None, "external-p-53f40b57-node" + 39 * "a", id="C-111 one over"
        ),
        pytest.param(
            "node" + 48 * "a", None, "e-53f40b57-node" + 48 * "a", id="C-111 suffix of 52"
        ),
        pytest.param("node" + 49 * "a", None, "external-provisioner-a3607ff1", id="C-111 of 53"),
        pytest.param("node" + 63 * "a", None, "external-provisioner-df38e37f", id="C-111 of 67"),
        pytest.param("node" + 63 * "a", "", "fa65587e", id="C-111 of 67 with empty base"),
    ],
)
def test_managed_by(suffix, base, expected):
    """CAP-004: The expected values are fixed."""
    found = managed_by(suffix) if base is None else managed_by(suffix, base)
    assert found == expected


@given(st.text("ab-", max_size=80), st.text("xy", max_size=80))
def test_managed_by_fits_a_label(suffix, base):
    """CAP-004: The API server would refuse a longer value."""
    assert len(managed_by(suffix, base)) <= 63


CLASS = {"parameters": {"a": "b", "csi.storage.k8s.io/fstype": "xfs"}}


def test_c115_parameters_are_passed_unchanged():
    """CAP-010: This includes reserved keys, unlike in CreateVolume; recorded in cap-01."""
    request = capacity_request(CLASS, ITEM.segment, has_topology=True)
    assert dict(request.parameters) == CLASS["parameters"]
    assert dict(request.accessible_topology.segments) == {"zone": "z1"}
    assert not request.volume_capabilities


def test_topology_of_an_empty_segment_is_sent_empty():
    """CAP-010: The field is set whenever there is a segment."""
    request = capacity_request({}, (), has_topology=True)
    assert request.HasField("accessible_topology")


@pytest.mark.parametrize("always", [False, True])
def test_cap011_driver_without_topology(always):
    """CAP-011: Topology is only sent if a switch restores csi-provisioner's behaviour (cap-12)."""
    request = capacity_request(
        {"parameters": None}, (), has_topology=False, always_send_topology=always
    )
    assert request.HasField("accessible_topology") is always


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param({}, Sizes(0), id="nothing"),
        pytest.param({"available_capacity": 2**63 - 1}, Sizes(2**63 - 1), id="C-116 huge"),
        pytest.param(
            {"available_capacity": 5, "maximum_volume_size": {"value": 0}},
            Sizes(5, 0),
            id="maximum of zero is a maximum",
        ),
        pytest.param(
            {
                "available_capacity": 5,
                "maximum_volume_size": {"value": 3},
                "minimum_volume_size": {"value": 1},
            },
            Sizes(5, 3),
            id="CAP-005",
        ),
    ],
)
def test_sizes_of(answer, expected):
    """CAP-002, CAP-005: Sizes are exact integers."""
    sizes = sizes_of(GetCapacityResponse(**answer))
    assert sizes == expected
    body = desired_object(PUBLISHER, ITEM, sizes, "n")
    assert updated_object(PUBLISHER, body, sizes) is None


def test_cap011_without_the_switch_no_topology_is_sent_to_a_driver_without_one():
    """CSI requires this; the switch is off by default."""
    request = capacity_request({}, (), has_topology=False)
    assert not request.HasField("accessible_topology")


@pytest.mark.parametrize(
    ("base", "suffix", "length"),
    [
        pytest.param(53 * "b", 9 * "s", 63, id="both fit exactly"),
        pytest.param(54 * "b", 60 * "s", 63, id="a long base is cut before its hash"),
        pytest.param(99 * "b", 99 * "s", 63, id="two long ones"),
        pytest.param(99 * "b", 52 * "s", 63, id="one character of the base is kept"),
    ],
)
def test_cap004_two_long_names_are_cut_to_a_label_s_length(base, suffix, length):
    """The result has the full length, and never more."""
    assert len(managed_by(suffix, base)) == length


def test_labels_that_are_null_are_no_labels():
    """The API server returns null for an object without labels."""
    existing = published()
    existing["metadata"]["labels"] = None
    assert not PUBLISHER.manages(existing)


def test_null_owners_are_no_owners():
    existing = published() | {"capacity": "1"}
    existing["metadata"]["ownerReferences"] = None
    assert updated_object(PUBLISHER, existing, Sizes(1)) is None
    updated = updated_object(OWNED, existing, Sizes(1))
    assert updated is not None
    assert updated["metadata"]["ownerReferences"] == [POD]


def test_the_owners_that_are_there_are_not_written_again():
    """CAP-061: Nothing changes if the publisher's owner is among them, or if it has none."""
    existing = published(OWNED)
    existing["metadata"]["ownerReferences"] = [OTHER, POD]
    assert updated_object(OWNED, existing, Sizes(GIB)) is None
    updated = updated_object(OWNED, existing, Sizes(5))
    assert updated is not None
    assert updated["metadata"]["ownerReferences"] == [OTHER, POD]
