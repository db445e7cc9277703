"""In-tree volumes, as the CSI driver that deletes them sees them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.migration_objects import volume
from workers.errors import AttemptError, State
from workers.migration.plugins import PLUGINS
from workers.migration.to_csi import volume_to_csi

GA_ZONE, BETA_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
URI = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d1"
SECRET = "azure-storage-account-acct-secret"  # the name of a Secret
SHARE = {"secretName": SECRET, "shareName": "sh", "secretNamespace": "ns"}
REF = {"name": SECRET, "namespace": "ns"}

BLOCKS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "gcePersistentDisk",
        {"pdName": "pd1"},
        {
            "driver": "pd.csi.storage.gke.io",
            "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/pd1",
            "volumeAttributes": {"partition": ""},
        },
    ),
    (
        "gcePersistentDisk",
        {"pdName": "pd1", "fsType": "xfs", "readOnly": True, "partition": 3},
        {
            "driver": "pd.csi.storage.gke.io",
            "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/pd1",
            "fsType": "xfs",
            "readOnly": True,
            "volumeAttributes": {"partition": "3"},
        },
    ),
    (
        "awsElasticBlockStore",
        {"volumeID": "vol-1", "fsType": "xfs", "readOnly": True},
        {
            "driver": "ebs.csi.aws.com",
            "volumeHandle": "vol-1",
            "fsType": "xfs",
            "readOnly": True,
            "volumeAttributes": {"partition": "0"},
        },
    ),
    (
        "awsElasticBlockStore",
        {"volumeID": "anything", "partition": 2, "readOnly": False},
        {
            "driver": "ebs.csi.aws.com",
            "volumeHandle": "anything",
            "volumeAttributes": {"partition": "2"},
        },
    ),
    (
        "cinder",
        {"volumeID": "cin-1", "fsType": "ext4", "readOnly": True},
        {
            "driver": "cinder.csi.openstack.org",
            "volumeHandle": "cin-1",
            "fsType": "ext4",
            "readOnly": True,
        },
    ),
    (
        "azureDisk",
        {"diskName": "d1", "diskURI": URI},
        {
            "driver": "disk.csi.azure.com",
            "volumeHandle": URI,
            "volumeAttributes": {"kind": "Managed"},
        },
    ),
    (
        "azureDisk",
        {
            "diskURI": URI,
            "kind": "managed",
            "cachingMode": "None",
            "fsType": "xfs",
            "readOnly": True,
        },
        {
            "driver": "disk.csi.azure.com",
            "volumeHandle": URI,
            "fsType": "xfs",
            "readOnly": True,
            "volumeAttributes": {"kind": "Managed", "cachingmode": "None", "fstype": "xfs"},
        },
    ),
    (
        "azureFile",
        SHARE,
        {
            "driver": "file.csi.azure.com",
            "volumeHandle": "#acct#sh#pv-1#ns",
            "volumeAttributes": {"sharename": "sh"},
            "nodeStageSecretRef": REF,
        },
    ),
    (
        "azureFile",
        {"secretName": "own", "shareName": "sh", "secretNamespace": "ns", "readOnly": True},
        {
            "driver": "file.csi.azure.com",
            "volumeHandle": "#own#sh#pv-1#ns",
            "readOnly": True,
            "volumeAttributes": {"sharename": "sh"},
            "nodeStageSecretRef": {"name": "own", "namespace": "ns"},
        },
    ),
    (
        "vsphereVolume",
        {"volumePath": "[ds] x.vmdk", "fsType": "ext4"},
        {"driver": "csi.vsphere.vmware.com", "volumeHandle": "[ds] x.vmdk", "fsType": "ext4"},
    ),
    (
        "vsphereVolume",
        {"volumePath": "[ds] x.vmdk", "storagePolicyName": "gold"},
        {
            "driver": "csi.vsphere.vmware.com",
            "volumeHandle": "[ds] x.vmdk",
            "volumeAttributes": {"storagepolicyname": "gold"},
        },
    ),
    (
        "portworxVolume",
        {"volumeID": "px-1", "fsType": "xfs", "readOnly": True},
        {"driver": "pxd.portworx.com", "volumeHandle": "px-1", "fsType": "xfs"},
    ),
]


@pytest.mark.parametrize(("field", "source", "expected"), BLOCKS)
def test_the_in_tree_source_becomes_the_csi_block(
    field: str, source: dict[str, Any], expected: dict[str, Any]
) -> None:
    """P-610: every row of the table holds, and the in-tree source is removed."""
    translated = volume_to_csi(volume(field, source))
    assert translated["spec"] == {"csi": expected}


@pytest.mark.parametrize("field", sorted({row.source_field for row in PLUGINS}))
def test_the_original_volume_stays_as_it_is(field: str) -> None:
    """P-501 step 2: deletion works on a copy."""
    source = next(source for name, source, _ in BLOCKS if name == field)
    pv = volume(field, source, labels={GA_ZONE: "us-west-2a"}, accessModes=["ReadWriteMany"])
    before = copy.deepcopy(pv)
    volume_to_csi(pv)
    assert pv == before


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        pytest.param({BETA_ZONE: "us-central1-a"}, "zones/us-central1-a", id="one zone"),
        pytest.param({GA_ZONE: "us-central1-a"}, "zones/us-central1-a", id="GA label"),
        pytest.param({BETA_ZONE: "a-b-c", GA_ZONE: "d-e-f"}, "zones/a-b-c", id="beta label first"),
        pytest.param({BETA_ZONE: "", GA_ZONE: "d-e-f"}, "zones/d-e-f", id="empty beta label"),
        pytest.param({}, "zones/UNSPECIFIED", id="no label"),
        pytest.param(
            {BETA_ZONE: "us-central1-a__us-central1-b"},
            "regions/us-central1",
            id="T-185 beta label",
        ),
        pytest.param(
            {GA_ZONE: "us-central1-a__us-central1-b"}, "regions/us-central1", id="T-185 GA label"
        ),
    ],
)
def test_gce_handles_name_zone_or_region(labels: dict[str, str], place: str) -> None:
    """P-610: the volume's zone label distinguishes a zonal disk from a regional one."""
    translated = volume_to_csi(volume("gcePersistentDisk", {"pdName": "pd9"}, labels=labels))
    handle = translated["spec"]["csi"]["volumeHandle"]
    assert handle == f"projects/UNSPECIFIED/{place}/disks/pd9"


RWO, ROX, RWX, RWOP = "ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        pytest.param([RWX, ROX], [RWO], id="T-186 RWX counts as RWO and wins"),
        pytest.param([ROX, RWX], [RWO], id="T-186 in any order"),
        pytest.param([RWO, ROX], [RWO], id="RWO wins"),
        pytest.param([ROX], [ROX], id="only ROX"),
        pytest.param([RWX], [RWO], id="only RWX"),
        pytest.param([RWOP], [RWO], id="anything else"),
        pytest.param([ROX, RWOP], [ROX], id="ROX without RWO"),
    ],
)
def test_gce_modes_are_normalised(modes: list[str], expected: list[str]) -> None:
    """P-610: the in-tree plugin never enforced access modes, but the attacher does."""
    pv = volume("gcePersistentDisk", {"pdName": "pd"}, accessModes=modes)
    assert volume_to_csi(pv)["spec"]["accessModes"] == expected


def test_other_plugins_keep_modes() -> None:
    """P-610: only gce-pd rewrites them."""
    pv = volume("cinder", {"volumeID": "c"}, accessModes=[RWX, ROX])
    assert volume_to_csi(pv)["spec"]["accessModes"] == [RWX, ROX]


@pytest.mark.parametrize(
    ("volume_id", "handle"),
    [
        ("aws://us-west-2b/vol-1", "vol-1"),
        ("aws:///vol-1", "vol-1"),
        ("aws:///vol-1/", "vol-1"),
        ("vol-1", "vol-1"),
        ("AWS:///vol-1", "AWS:///vol-1"),
        ("", ""),
    ],
)
def test_aws_urls_become_ids(volume_id: str, handle: str) -> None:
    """P-610: only the prefix `aws://` makes a URL."""
    translated = volume_to_csi(volume("awsElasticBlockStore", {"volumeID": volume_id}))
    assert translated["spec"]["csi"]["volumeHandle"] == handle


def test_azure_file_handles_carry_the_resource_group() -> None:
    """P-610: it comes from the annotation that the translation to in-tree wrote."""
    annotations = {"kubernetes.io/azure-file-resource-group": "rg"}
    translated = volume_to_csi(volume("azureFile", SHARE, annotations=annotations))
    assert translated["spec"]["csi"]["volumeHandle"] == "rg#acct#sh#pv-1#ns"


def test_azure_file_secrets_default_to_the_claims_namespace() -> None:
    """P-610: secretNamespace is used first, then the claim's namespace."""
    source = {"secretName": SECRET, "shareName": "sh"}
    pv = volume("azureFile", source, claimRef={"namespace": "claims", "name": "c"})
    block = volume_to_csi(pv)["spec"]["csi"]
    assert block["nodeStageSecretRef"] == {"name": SECRET, "namespace": "claims"}
    assert block["volumeHandle"] == "#acct#sh#pv-1#claims"


PORTWORX_ANNOTATIONS = {
    "openstorage.io/auth-secret-name": "px",
    "openstorage.io/auth-secret-namespace": "px-ns",
}


def test_portworx_annotations_become_secret_refs() -> None:
    """P-610: there are five references if both annotations exist."""
    pv = volume("portworxVolume", {"volumeID": "px-1"}, annotations=PORTWORX_ANNOTATIONS)
    block = volume_to_csi(pv)["spec"]["csi"]
    reference = {"name": "px", "namespace": "px-ns"}
    uses = ("controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand")
    refs = {f"{use}SecretRef": reference for use in uses}
    assert block == {"driver": "pxd.portworx.com", "volumeHandle": "px-1", **refs}


@pytest.mark.parametrize("missing", PORTWORX_ANNOTATIONS)
def test_one_portworx_annotation_is_not_enough(missing: str) -> None:
    """P-610: an incomplete reference is ignored."""
    annotations = {k: v for k, v in PORTWORX_ANNOTATIONS.items() if k != missing}
    pv = volume("portworxVolume", {"volumeID": "px-1"}, annotations=annotations)
    expected = {"driver": "pxd.portworx.com", "volumeHandle": "px-1"}
    assert volume_to_csi(pv)["spec"]["csi"] == expected


@pytest.mark.parametrize(
    ("pv", "message"),
    [
        pytest.param(
            volume("awsElasticBlockStore", {"volumeID": "aws://z/vol/1"}),
            "failed to translate Kubernetes ID to EBS Volume ID "
            "Invalid format for AWS volume (aws://z/vol/1)",
            id="aws url",
        ),
        pytest.param(
            volume("gcePersistentDisk", {"pdName": "pd"}, labels={GA_ZONE: "a-b-c__x-y-z"}),
            "failed to get region from zones: "
            "multiple or no regions gotten from zones, got: map[a-b:{} x-y:{}]",
            id="gce two regions",
        ),
        pytest.param(
            volume("gcePersistentDisk", {"pdName": "pd"}, labels={GA_ZONE: "a__b"}),
            "failed to get region from zones: "
            "zone in unexpected format, expected: {locale}-{region}-{zone}, got: a",
            id="gce zone form",
        ),
        pytest.param(
            volume("azureDisk", {"diskURI": URI, "kind": "Dedicated"}),
            "kind(Dedicated) is not supported in csi migration",
            id="azure kind",
        ),
        pytest.param(
            volume("azureFile", {"secretName": SECRET, "shareName": "sh"}),
            "could not find a secret namespace in PersistentVolumeSource or ClaimRef",
            id="azure file without namespace",
        ),
        pytest.param(
            volume("hostPath", {"path": "/x"}),
            'could not find in-tree plugin translation logic for "pv-1"',
            id="no in-tree source",
        ),
    ],
)
def test_a_volume_that_cannot_be_translated_fails(pv: dict[str, Any], message: str) -> None:
    """P-610, P-501 step 2: the error is reported unchanged, and the driver is not called."""
    with pytest.raises(AttemptError) as caught:
        volume_to_csi(pv)
    assert caught.value.message == message
    assert caught.value.state is State.NO_CHANGE
