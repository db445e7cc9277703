"""Storage classes of in-tree plugins, as their CSI drivers read them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.migration_objects import in_tree_class, topology
from workers.errors import AttemptError, State
from workers.migration.classes import class_to_csi, dropped_parameters, is_migrated, translate_class
from workers.migration.plugins import PLUGINS

FSTYPE = "csi.storage.k8s.io/fstype"
GA_ZONE, BETA_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
IN_TREE = [row.in_tree_name for row in PLUGINS]
ZONE_KEYS = {row.in_tree_name: row.zone_key for row in PLUGINS if row.zone_key}
BOTH = "cannot simultaneously set allowed topologies and zone/zones parameters"

PARAMETERS = [
    ("gce-pd", {"type": "pd-ssd", "FSType": "xfs"}, {"type": "pd-ssd", FSTYPE: "xfs"}),
    ("gce-pd", {"replication-type": "x"}, {"replication-type": "x"}),
    ("aws-ebs", {"fsType": "ext4", "encrypted": "true"}, {FSTYPE: "ext4", "encrypted": "true"}),
    (
        "aws-ebs",
        {"iopsPerGB": "10"},
        {"iopsPerGB": "10", "allowautoiopspergbincrease": "true"},
    ),
    (
        "cinder",
        {"availability": "nova", "fstype": "ext4", "type": "ssd"},
        {"availability": "nova", FSTYPE: "ext4", "type": "ssd"},
    ),
    ("azure-disk", {"fstype": "xfs", "Kind": "Managed"}, {"fstype": "xfs", "Kind": "Managed"}),
    ("azure-file", {"skuName": "x", "fstype": "y"}, {"skuName": "x", "fstype": "y"}),
    ("azure-file", {"zone": "a", "zones": "b"}, {"zone": "a", "zones": "b"}),
    ("vsphere-volume", {"FSTYPE": "ext4"}, {FSTYPE: "ext4", "csimigration": "true"}),
    (
        "vsphere-volume",
        {"storagePolicyName": "gold"},
        {"storagepolicyname": "gold", "csimigration": "true"},
    ),
    (
        "vsphere-volume",
        {
            "Datastore": "1",
            "diskFormat": "2",
            "hostFailuresToTolerate": "3",
            "forceProvisioning": "4",
            "cacheReservation": "5",
            "diskStripes": "6",
            "objectSpaceReservation": "7",
            "iopsLimit": "8",
        },
        {
            "datastore-migrationparam": "1",
            "diskformat-migrationparam": "2",
            "hostfailurestotolerate-migrationparam": "3",
            "forceprovisioning-migrationparam": "4",
            "cachereservation-migrationparam": "5",
            "diskstripes-migrationparam": "6",
            "objectspacereservation-migrationparam": "7",
            "iopslimit-migrationparam": "8",
            "csimigration": "true",
        },
    ),
    ("portworx-volume", {"repl": "2", "fs": "xfs"}, {"repl": "2", "fs": "xfs"}),
]


@pytest.mark.parametrize(("plugin", "given", "expected"), PARAMETERS)
def test_parameters_are_translated(
    plugin: str, given: dict[str, str], expected: dict[str, str]
) -> None:
    """P-603: every row of the table holds, whatever the case of the keys."""
    name = "kubernetes.io/" + plugin
    assert translate_class(in_tree_class(name, parameters=given), name)["parameters"] == expected


@pytest.mark.parametrize("plugin", IN_TREE)
def test_the_original_class_stays_as_it_is(plugin: str) -> None:
    """P-602, P-128: translation works on a deep copy."""
    original = in_tree_class(
        plugin, [topology(GA_ZONE, "1")], parameters={"fstype": "ext4"}, mountOptions=["noatime"]
    )
    before = copy.deepcopy(original)
    translated = translate_class(original, plugin)
    for term in translated["allowedTopologies"]:
        term["matchLabelExpressions"][0]["values"].append("x")
    assert original == before


@pytest.mark.parametrize("plugin", IN_TREE)
def test_only_portworx_changes_the_provisioner(plugin: str) -> None:
    """P-602: the rest of the class stays, and an absent parameter map is not an error."""
    original = in_tree_class(plugin, reclaimPolicy="Retain", mountOptions=["noatime"])
    translated = translate_class(original, plugin)
    moved = plugin == "kubernetes.io/portworx-volume"
    assert translated["provisioner"] == ("pxd.portworx.com" if moved else plugin)
    assert translated["reclaimPolicy"] == "Retain"
    assert translated["mountOptions"] == ["noatime"]


def test_t182_a_native_class_is_not_migrated() -> None:
    """P-602: only the in-tree name of the running driver starts a translation."""
    assert not is_migrated(in_tree_class("ebs.csi.aws.com"), "ebs.csi.aws.com")
    assert not is_migrated(in_tree_class("kubernetes.io/gce-pd"), "ebs.csi.aws.com")
    assert not is_migrated(in_tree_class("kubernetes.io/aws-ebs"), "hostpath.csi.k8s.io")


@pytest.mark.parametrize("row", PLUGINS, ids=lambda row: row.in_tree_name)
def test_t180_a_class_with_the_in_tree_name_is_migrated(row: Any) -> None:
    """P-602: the class decides whether to translate; P-100 uses the claim's annotations."""
    assert is_migrated(in_tree_class(row.in_tree_name), row.driver_name)


ZONAL = ["kubernetes.io/gce-pd", "kubernetes.io/aws-ebs", "kubernetes.io/azure-disk"]


@pytest.mark.parametrize("plugin", ZONAL)
@pytest.mark.parametrize(
    ("parameters", "zones"),
    [
        pytest.param({"zone": "a"}, ["a"], id="one zone"),
        pytest.param({"Zone": "a,b"}, ["a,b"], id="zone is never split"),
        pytest.param({"zones": "a,b"}, ["a", "b"], id="zones"),
        pytest.param({"ZONES": "a, b"}, ["a", " b"], id="not trimmed"),
        pytest.param({"zones": "a,b", "zone": "c"}, ["a", "b"], id="D-026 zones win over zone"),
        pytest.param({"Zones": "a,b", "zone": "c"}, ["a", "b"], id="D-026 whatever the spelling"),
    ],
)
def test_zone_parameters_become_topologies(
    plugin: str, parameters: dict[str, str], zones: list[str]
) -> None:
    """P-603, P-604: the zones are removed from the parameters."""
    translated = translate_class(in_tree_class(plugin, parameters=parameters), plugin)
    assert translated["allowedTopologies"] == [topology(str(ZONE_KEYS[plugin]), *zones)]
    assert translated["parameters"] == {}


@pytest.mark.parametrize("plugin", ZONAL)
@pytest.mark.parametrize("parameters", [{"zones": "a,b"}, {"zone": "a"}, {"zone": ""}])
def test_t183_zones_and_topologies_together_are_refused(
    plugin: str, parameters: dict[str, str]
) -> None:
    """P-604, P-101 step 8: the state is Finished, and the text has the attempt's prefix."""
    given = in_tree_class(plugin, [topology(GA_ZONE, "a")], parameters=parameters)
    with pytest.raises(AttemptError) as caught:
        translate_class(given, plugin)
    assert caught.value.message == "failed to translate storage class: " + BOTH
    assert caught.value.state is State.FINISHED


def test_deletion_sees_the_error_without_prefix() -> None:
    """P-513: the translation error is returned unchanged."""
    plugin = "kubernetes.io/gce-pd"
    given = in_tree_class(plugin, [topology(GA_ZONE, "a")], parameters={"zone": "a"})
    with pytest.raises(AttemptError) as caught:
        class_to_csi(given, plugin)
    assert caught.value.message == BOTH


@pytest.mark.parametrize("plugin", ["kubernetes.io/cinder", "kubernetes.io/vsphere-volume"])
def test_plugins_without_zone_parameters_never_refuse(plugin: str) -> None:
    """P-604: only gce-pd, aws-ebs and azure-disk refuse both together."""
    given = in_tree_class(plugin, [topology(GA_ZONE, "a")], parameters={"zones": "b"})
    translated = translate_class(given, plugin)
    assert translated["allowedTopologies"] == [topology(str(ZONE_KEYS[plugin]), "a")]


@pytest.mark.parametrize("plugin", ZONE_KEYS)
@pytest.mark.parametrize("label", [GA_ZONE, BETA_ZONE])
def test_zone_labels_become_the_drivers_key(plugin: str, label: str) -> None:
    """P-604: regions and all other keys stay unchanged in their places."""
    others = [topology("topology.kubernetes.io/region", "r"), topology("rack", "r1")]
    translated = translate_class(in_tree_class(plugin, [*others, topology(label, "a")]), plugin)
    assert translated["allowedTopologies"] == [*others, topology(str(ZONE_KEYS[plugin]), "a")]


@pytest.mark.parametrize("plugin", ["kubernetes.io/azure-file", "kubernetes.io/portworx-volume"])
def test_plugins_without_topology_leave_it_alone(plugin: str) -> None:
    """P-604: these plugins have no key to translate to."""
    given = in_tree_class(plugin, [topology(GA_ZONE, "a")])
    assert translate_class(given, plugin)["allowedTopologies"] == given["allowedTopologies"]


@pytest.mark.parametrize(
    ("storage_class", "zones"),
    [
        pytest.param(
            {"topologies": [topology(GA_ZONE, "0", "westus-1")]}, ["", "westus-1"], id="labels"
        ),
        pytest.param({"parameters": {"zones": "1,westus-1"}}, ["", "westus-1"], id="parameters"),
        pytest.param(
            {"topologies": [topology(GA_ZONE, "-1", "1a", "")]}, ["-1", "1a", ""], id="no number"
        ),
    ],
)
def test_t187_a_number_is_no_azure_zone(storage_class: dict[str, Any], zones: list[str]) -> None:
    """P-604: all-digit values are fault domains of regions without zones."""
    plugin = "kubernetes.io/azure-disk"
    translated = translate_class(in_tree_class(plugin, **storage_class), plugin)
    assert translated["allowedTopologies"] == [topology(str(ZONE_KEYS[plugin]), *zones)]


def test_t187_numbers_under_other_keys_stay() -> None:
    """P-604: only azure-disk's zone key is checked."""
    plugin = "kubernetes.io/azure-disk"
    translated = translate_class(in_tree_class(plugin, [topology("rack", "1")]), plugin)
    assert translated["allowedTopologies"] == [topology("rack", "1")]


def test_t188_vsphere_drops_prefixed_and_secret_keys() -> None:
    """P-603, D-039: they are dropped as in the Go code, and the caller can log them."""
    plugin = "kubernetes.io/vsphere-volume"
    secret = "csi.storage.k8s.io/provisioner-secret-name"
    given = in_tree_class(plugin, parameters={FSTYPE: "xfs", secret: "s", "Datastore": "d"})
    translated = translate_class(given, plugin)
    assert translated["parameters"] == {"datastore-migrationparam": "d", "csimigration": "true"}
    assert dropped_parameters(given, plugin) == [FSTYPE, secret]


def test_nothing_is_dropped_elsewhere() -> None:
    """P-603: only vSphere loses parameters."""
    given = in_tree_class("kubernetes.io/aws-ebs", parameters={"unknown": "x"})
    assert dropped_parameters(given, "kubernetes.io/aws-ebs") == []


def test_t189_portworx_secret_serves_six_uses() -> None:
    """P-603: twelve keys result, and the class gets the driver's name as provisioner."""
    plugin = "kubernetes.io/portworx-volume"
    given = in_tree_class(
        plugin,
        parameters={
            "openstorage.io/auth-secret-name": "px",
            "openstorage.io/auth-secret-namespace": "ns",
        },
    )
    uses = ["provisioner", "controller-publish", "node-publish", "node-stage"]
    uses += ["controller-expand", "node-expand"]
    expected = {f"csi.storage.k8s.io/{use}-secret-name": "px" for use in uses}
    expected |= {f"csi.storage.k8s.io/{use}-secret-namespace": "ns" for use in uses}
    translated = translate_class(given, plugin)
    assert translated["parameters"] == expected
    assert translated["provisioner"] == "pxd.portworx.com"


def test_portworx_without_parameters_keeps_none() -> None:
    """P-603: an absent map stays absent."""
    plugin = "kubernetes.io/portworx-volume"
    assert "parameters" not in translate_class(in_tree_class(plugin), plugin)


@pytest.mark.parametrize(
    ("plugin", "given", "expected"),
    [
        pytest.param(
            "gce-pd", {"FSType": "a", "fstype": "b"}, {FSTYPE: "b"}, id="small letters win"
        ),
        pytest.param("gce-pd", {FSTYPE: "a", "FSTYPE": "b"}, {FSTYPE: "b"}, id="plain fstype wins"),
        pytest.param(
            "vsphere-volume",
            {"datastore": "a", "DataStore": "b"},
            {"datastore-migrationparam": "a", "csimigration": "true"},
            id="vsphere spellings",
        ),
        pytest.param(
            "aws-ebs",
            {"iopspergb": "1", "allowautoiopspergbincrease": "false"},
            {"iopspergb": "1", "allowautoiopspergbincrease": "true"},
            id="the added value wins",
        ),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_ambiguous_parameters_have_one_winner(
    plugin: str, given: dict[str, str], expected: dict[str, str], *, reverse: bool
) -> None:
    """D-026: the order of the map does not matter."""
    name = "kubernetes.io/" + plugin
    parameters = dict(reversed(given.items())) if reverse else given
    translated = translate_class(in_tree_class(name, parameters=parameters), name)
    assert translated["parameters"] == expected


def test_an_unknown_plugin_is_an_error() -> None:
    """P-602: this cannot happen for a driver of P-601; the text is that of the Go code."""
    with pytest.raises(AttemptError) as caught:
        translate_class(in_tree_class("kubernetes.io/rbd"), "kubernetes.io/rbd")
    assert caught.value.message == (
        "failed to translate storage class: could not find in-tree storage class parameter "
        'translation logic for "kubernetes.io/rbd"'
    )
