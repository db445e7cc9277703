"""Volumes of migrated drivers in the form in which they are stored."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.migration_objects import affinity, csi_volume, expression
from workers.errors import AttemptError, State
from workers.migration.plugins import PLUGINS
from workers.migration.to_in_tree import volume_to_in_tree

GCE, EBS, CINDER, AZURE_DISK, AZURE_FILE, VSPHERE, PORTWORX = (row.driver_name for row in PLUGINS)
FIELDS = {row.driver_name: row.source_field for row in PLUGINS}

URI = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d1"
BLOB = "https://acct.blob.core.windows.net/vhds/d2.vhd"
HANDLES = {
    GCE: "projects/p/zones/us-central1-a/disks/pd1",
    AZURE_DISK: URI,
    AZURE_FILE: "rg#acct#share",
}
MANAGED = r".*/subscriptions/(?:.*)/resourceGroups/(?:.*)/providers/Microsoft.Compute/disks/(.+)"
UNMANAGED = r"http(?:.*)://(?:.*)/vhds/(.+)"


def source_of(driver: str, handle: str, csi: dict[str, Any]) -> dict[str, Any]:
    """Return the in-tree source built from one csi block."""
    translated = volume_to_in_tree(csi_volume(driver, handle, csi=csi), driver)
    source: dict[str, Any] = translated["spec"][FIELDS[driver]]
    return source


def azure_disk(**fields: Any) -> dict[str, Any]:
    """Return an azureDisk source with the fields that are always present."""
    plain = {"diskName": "d1", "diskURI": URI, "fsType": "", "kind": "Managed", "readOnly": False}
    return plain | fields


SHARE = {"secretName": "azure-storage-account-acct-secret", "secretNamespace": "default"}
SHARE |= {"shareName": "share"}

SOURCES = [
    (GCE, "projects/p/zones/z/disks/pd1", {}, {"pdName": "pd1"}),
    (GCE, "projects/p/regions/r/disks/pd1/more", {}, {"pdName": "pd1"}),
    (
        GCE,
        "a/b/c/d/e/pd",
        {"fsType": "xfs", "readOnly": True, "volumeAttributes": {"partition": "3"}},
        {"pdName": "pd", "fsType": "xfs", "readOnly": True, "partition": 3},
    ),
    (GCE, "a/b/c/d/e/pd", {"volumeAttributes": {"partition": ""}}, {"pdName": "pd"}),
    (EBS, "vol-1", {}, {"volumeID": "vol-1"}),
    (
        EBS,
        "vol-1",
        {"fsType": "xfs", "readOnly": True, "volumeAttributes": {"partition": "2"}},
        {"volumeID": "vol-1", "fsType": "xfs", "readOnly": True, "partition": 2},
    ),
    (EBS, "vol-1", {"volumeAttributes": {"partition": "0"}}, {"volumeID": "vol-1"}),
    (
        CINDER,
        "cin-1",
        {"fsType": "ext4", "readOnly": True, "volumeAttributes": {"partition": "x"}},
        {"volumeID": "cin-1", "fsType": "ext4", "readOnly": True},
    ),
    (AZURE_DISK, URI, {}, azure_disk()),
    (AZURE_DISK, BLOB, {}, azure_disk(diskName="d2.vhd", diskURI=BLOB)),
    (
        AZURE_DISK,
        URI,
        {"fsType": "ext4", "readOnly": True, "volumeAttributes": {"CachingMode": "None"}},
        azure_disk(fsType="ext4", readOnly=True, cachingMode="None"),
    ),
    (
        AZURE_DISK,
        URI,
        {"fsType": "ext4", "volumeAttributes": {"cachingmode": "", "FSTYPE": "xfs"}},
        azure_disk(fsType="xfs"),
    ),
    (
        AZURE_DISK,
        URI,
        {"fsType": "ext4", "volumeAttributes": {"fstype": "", "kind": "Dedicated"}},
        azure_disk(fsType="ext4"),
    ),
    (AZURE_FILE, "rg#acct#share", {}, SHARE),
    (AZURE_FILE, "rg#acct#share#disk#ns", {"readOnly": True}, SHARE | {"readOnly": True}),
    (
        AZURE_FILE,
        "opaque",
        {"volumeAttributes": {"ShareName": "s", "secretName": "k", "SECRETNAMESPACE": "ns"}},
        {"secretName": "k", "secretNamespace": "ns", "shareName": "s"},
    ),
    (
        AZURE_FILE,
        "opaque",
        {
            "volumeAttributes": {"sharename": "s", "secretname": "k", "secretnamespace": "ns"},
            "nodeStageSecretRef": {"name": "stage", "namespace": "stage-ns"},
        },
        {"secretName": "stage", "secretNamespace": "stage-ns", "shareName": "s"},
    ),
    (
        AZURE_FILE,
        "rg#acct#share",
        {"volumeAttributes": {"sharename": "kept"}},
        SHARE | {"shareName": "kept"},
    ),
    (
        VSPHERE,
        "id",
        {"volumeAttributes": {"initialvolumefilepath": "[d] x"}},
        {"volumePath": "[d] x"},
    ),
    (
        VSPHERE,
        "id",
        {"fsType": "ext4", "readOnly": True, "volumeAttributes": {"storagepolicyname": "gold"}},
        {"volumePath": "", "fsType": "ext4"},
    ),
    (
        PORTWORX,
        "px-1",
        {"fsType": "xfs", "readOnly": True, "volumeAttributes": {"x": "y"}},
        {"volumeID": "px-1", "fsType": "xfs", "readOnly": True},
    ),
]


@pytest.mark.parametrize(("driver", "handle", "csi", "expected"), SOURCES)
def test_the_csi_block_becomes_the_in_tree_source(
    driver: str, handle: str, csi: dict[str, Any], expected: dict[str, Any]
) -> None:
    """P-606: every row of the table holds; empty optional fields are absent, as in Go."""
    assert source_of(driver, handle, csi) == expected


@pytest.mark.parametrize("driver", FIELDS)
def test_t180_the_rest_of_the_volume_stays(driver: str) -> None:
    """P-600, P-606: the csi block is removed; deletion secrets, modes and options stay."""
    annotations = {"volume.kubernetes.io/provisioner-deletion-secret-name": "s"}
    pv = csi_volume(
        driver,
        HANDLES.get(driver, "h"),
        annotations=annotations,
        accessModes=["ReadWriteMany"],
        capacity={"storage": "1Gi"},
        mountOptions=["ro"],
        persistentVolumeReclaimPolicy="Delete",
    )
    before = copy.deepcopy(pv)
    translated = volume_to_in_tree(pv, driver)
    assert pv == before
    assert translated["metadata"]["annotations"].items() >= annotations.items()
    kept = {k: v for k, v in translated["spec"].items() if k != FIELDS[driver]}
    assert kept == {k: v for k, v in pv["spec"].items() if k != "csi"}


@pytest.mark.parametrize(
    ("driver", "handle", "attributes", "message"),
    [
        pytest.param(
            GCE,
            "short/handle",
            {},
            "failed to get id components.Got: 2, wanted 6 components or more. ",
            id="gce short handle",
        ),
        pytest.param(
            GCE,
            "a/b/c/d/e/f",
            {"partition": "x"},
            'Failed to convert partition x to integer: strconv.Atoi: parsing "x": invalid syntax',
            id="gce partition",
        ),
        pytest.param(
            EBS,
            "vol-1",
            {"partition": ""},
            'failed to convert partition  to integer: strconv.Atoi: parsing "": invalid syntax',
            id="aws empty partition",
        ),
        pytest.param(
            EBS,
            "vol-1",
            {"partition": " 1"},
            'failed to convert partition  1 to integer: strconv.Atoi: parsing " 1": invalid syntax',
            id="aws partition with a blank",
        ),
        pytest.param(
            EBS,
            "vol-1",
            {"partition": "9223372036854775808"},
            "failed to convert partition 9223372036854775808 to integer: "
            'strconv.Atoi: parsing "9223372036854775808": value out of range',
            id="aws partition too large",
        ),
        pytest.param(
            AZURE_DISK,
            "nonsense",
            {},
            f"could not get disk name from nonsense, correct format: {MANAGED}",
            id="azure managed disk",
        ),
        pytest.param(
            AZURE_DISK,
            "HTTP://x/vhds/d",
            {},
            f"could not get disk name from HTTP://x/vhds/d, correct format: {UNMANAGED}",
            id="azure blob in capitals",
        ),
        pytest.param(
            AZURE_FILE,
            "rg#acct",
            {},
            'error parsing volume id: "rg#acct", should at least contain two #',
            id="azure file",
        ),
    ],
)
def test_a_handle_of_another_form_fails(
    driver: str, handle: str, attributes: dict[str, str], message: str
) -> None:
    """P-605, P-606: storage already exists, so the state is Background."""
    with pytest.raises(AttemptError) as caught:
        source_of(driver, handle, {"volumeAttributes": attributes})
    assert caught.value.message == message
    assert caught.value.state is State.BACKGROUND


@pytest.mark.parametrize(
    ("csi", "expected"),
    [
        pytest.param({}, "rg", id="split"),
        pytest.param({"volumeAttributes": {"sharename": "s"}}, "rg", id="split for the secret"),
        pytest.param(
            {"volumeAttributes": {"sharename": "s", "secretname": "k"}}, None, id="no split"
        ),
    ],
)
def test_azure_file_keeps_the_resource_group(csi: dict[str, Any], expected: str | None) -> None:
    """P-606: it becomes an annotation, but only if the handle had to be split."""
    translated = volume_to_in_tree(csi_volume(AZURE_FILE, "rg#acct#share", csi=csi), AZURE_FILE)
    annotations = translated["metadata"].get("annotations", {})
    assert annotations.get("kubernetes.io/azure-file-resource-group") == expected


def test_azure_file_without_resource_group_gets_no_annotation() -> None:
    """P-606: an empty first part is not a resource group."""
    translated = volume_to_in_tree(csi_volume(AZURE_FILE, "#acct#share"), AZURE_FILE)
    assert "annotations" not in translated["metadata"]


@pytest.mark.parametrize("driver", [AZURE_DISK, AZURE_FILE, PORTWORX])
def test_plugins_without_topology_keep_the_affinity(driver: str) -> None:
    """P-606: no key is renamed and no label is added."""
    terms = affinity([expression("topology.disk.csi.azure.com/zone", "1")])
    pv = csi_volume(driver, HANDLES.get(driver, "h"), node_affinity=terms)
    translated = volume_to_in_tree(pv, driver)
    assert translated["spec"]["nodeAffinity"] == terms
    assert "labels" not in translated["metadata"]


def test_a_bad_zone_names_volume_and_cause() -> None:
    """P-607: the text is that of the Go code, with the dump reduced to the volume's name."""
    terms = affinity([expression("topology.ebs.csi.aws.com/zone", "bad")])
    with pytest.raises(AttemptError) as caught:
        volume_to_in_tree(csi_volume(EBS, "vol-1", node_affinity=terms), EBS)
    assert caught.value.message == (
        "failed to translate topology. PV:{TypeMeta:{Kind: APIVersion:} ObjectMeta:{Name:pv-1}}. "
        "Error:Failed to handle region topology. error: "
        "Unexpected zone format: bad is not a valid AWS zone"
    )
    assert caught.value.state is State.BACKGROUND


def test_a_volume_without_csi_source_is_an_error() -> None:
    """P-606: this cannot happen after CreateVolume; the text is that of the Go code."""
    with pytest.raises(AttemptError, match=r"^CSI persistent volume was nil$"):
        volume_to_in_tree({"metadata": {"name": "pv-1"}, "spec": {}}, EBS)


def test_an_unknown_driver_is_an_error() -> None:
    """P-601: only seven drivers have an in-tree form."""
    with pytest.raises(AttemptError, match=r"translation logic for hostpath\.csi\.k8s\.io$"):
        volume_to_in_tree(csi_volume("hostpath.csi.k8s.io", "h"), "hostpath.csi.k8s.io")
