"""A volume translated to in-tree and back equals the original where in-tree keeps the fields."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.migration_objects import csi_volume
from workers.migration.plugins import PLUGINS, in_tree_name, in_tree_source
from workers.migration.to_csi import volume_to_csi
from workers.migration.to_in_tree import volume_to_in_tree

GCE, EBS, CINDER, AZURE_DISK, AZURE_FILE, VSPHERE, PORTWORX = (row.driver_name for row in PLUGINS)
ZONE_KEYS = {row.driver_name: row.zone_key for row in PLUGINS}

names = st.from_regex(r"[a-z][a-z0-9.]{0,12}", fullmatch=True)
fs_types = st.sampled_from([None, "ext4", "xfs"])


@st.composite
def handles(draw: st.DrawFn, driver: str) -> str:
    """Return a handle the driver could answer with; its parts all survive in-tree storage."""
    name = draw(names)
    if driver == GCE:
        return f"projects/UNSPECIFIED/zones/us-central1-a/disks/{name}"
    if driver == AZURE_DISK:
        return f"/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/{name}"
    if driver == AZURE_FILE:
        return f"{draw(names)}#{draw(names)}#{name}#pv-1#default"
    return f"vol-{name}"


def zone_terms(driver: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Return one term per zone, all of one region, with zone names of the driver's cloud."""
    form = {GCE: "us-central1-{}", EBS: "us-west-2{}"}.get(driver, "{}")
    # gce-pd treats a disk with several zones as regional; one zone matches its handle above.
    letters = st.just(["a"]) if driver == GCE else st.lists(st.sampled_from("abc"), unique=True)
    key = ZONE_KEYS[driver]

    def terms(chosen: list[str]) -> list[dict[str, Any]]:
        values = [form.format(letter) for letter in chosen]
        return [
            {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
            for value in values
        ]

    return letters.map(terms)


@st.composite
def volumes(draw: st.DrawFn, driver: str) -> dict[str, Any]:
    """Return a volume as provisioning builds it."""
    handle = draw(handles(driver))
    csi: dict[str, Any] = {
        "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": "i"}
    }
    fs_type = draw(fs_types)
    # azure-file has no fsType field; vSphere keeps a path, which its driver returns with the id.
    if fs_type is not None and driver != AZURE_FILE:
        csi["fsType"] = fs_type
    if driver == VSPHERE:
        csi["volumeAttributes"]["initialvolumefilepath"] = handle
    fields: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    if ZONE_KEYS[driver] is not None:
        terms = draw(zone_terms(driver))
        if terms:
            fields["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    return csi_volume(driver, handle, csi=csi, **fields)


def zones_of(pv: dict[str, Any], driver: str) -> list[list[str]]:
    """Return the zones of each term, without the regions that in-tree storage adds."""
    required = pv["spec"].get("nodeAffinity", {}).get("required", {})
    return [
        [
            value
            for expression in term["matchExpressions"]
            if expression["key"] == ZONE_KEYS[driver]
            for value in expression["values"]
        ]
        for term in required.get("nodeSelectorTerms", [])
    ]


any_driver = st.sampled_from([row.driver_name for row in PLUGINS])


@given(st.data(), any_driver)
def test_handle_file_system_and_zones_survive(data: st.DataObject, driver: str) -> None:
    """P-606, P-610: a deletion therefore reaches the volume that was created."""
    pv = data.draw(volumes(driver))
    back = volume_to_csi(volume_to_in_tree(pv, driver))
    before, after = pv["spec"], back["spec"]
    assert after["csi"]["driver"] == driver
    assert after["csi"]["volumeHandle"] == before["csi"]["volumeHandle"]
    assert after["csi"].get("fsType") == before["csi"].get("fsType")
    assert zones_of(back, driver) == zones_of(pv, driver)
    for field in ("accessModes", "capacity"):
        assert after[field] == before[field]


@given(st.data(), any_driver)
def test_translation_is_deterministic_and_leaves_inputs_alone(
    data: st.DataObject, driver: str
) -> None:
    """D-026: the same volume always gives the same result and is not modified."""
    pv = data.draw(volumes(driver))
    before = copy.deepcopy(pv)
    stored = volume_to_in_tree(pv, driver)
    assert in_tree_source(stored) == in_tree_name(driver)
    assert "csi" not in stored["spec"]
    assert volume_to_in_tree(pv, driver) == stored
    assert volume_to_csi(stored) == volume_to_csi(stored)
    assert pv == before
