"""The plugin table of P-601 and its lookups."""

from __future__ import annotations

import pytest

from tests.support.migration_objects import csi_volume, volume
from workers.migration.plugins import PLUGINS, in_tree_name, in_tree_source

TABLE = {
    "pd.csi.storage.gke.io": ("kubernetes.io/gce-pd", "gcePersistentDisk"),
    "ebs.csi.aws.com": ("kubernetes.io/aws-ebs", "awsElasticBlockStore"),
    "cinder.csi.openstack.org": ("kubernetes.io/cinder", "cinder"),
    "disk.csi.azure.com": ("kubernetes.io/azure-disk", "azureDisk"),
    "file.csi.azure.com": ("kubernetes.io/azure-file", "azureFile"),
    "csi.vsphere.vmware.com": ("kubernetes.io/vsphere-volume", "vsphereVolume"),
    "pxd.portworx.com": ("kubernetes.io/portworx-volume", "portworxVolume"),
}


def test_the_table_has_exactly_the_seven_drivers() -> None:
    """P-601: Ceph RBD is no longer one of them."""
    assert {row.driver_name for row in PLUGINS} == set(TABLE)


@pytest.mark.parametrize("driver", TABLE)
def test_a_driver_knows_its_in_tree_name(driver: str) -> None:
    """P-009, P-601: that name becomes an additional provisioner name."""
    assert in_tree_name(driver) == TABLE[driver][0]


@pytest.mark.parametrize(
    "driver", ["hostpath.csi.k8s.io", "rbd.csi.ceph.com", "", "EBS.csi.aws.com"]
)
def test_other_drivers_migrate_nothing(driver: str) -> None:
    """P-009: migration is off for them."""
    assert in_tree_name(driver) is None


@pytest.mark.parametrize("driver", TABLE)
def test_an_in_tree_source_names_its_plugin(driver: str) -> None:
    """P-612: only the source decides, not any driver name."""
    name, field = TABLE[driver]
    assert in_tree_source(volume(field, {})) == name


@pytest.mark.parametrize(
    "pv",
    [
        pytest.param(csi_volume("ebs.csi.aws.com", "vol-1"), id="csi"),
        pytest.param(volume("hostPath", {"path": "/data"}), id="another in-tree source"),
        pytest.param({"spec": {"cinder": None}}, id="explicit null"),
        pytest.param({"metadata": {"name": "pv-1"}}, id="no spec"),
    ],
)
def test_other_volumes_have_no_in_tree_source(pv: dict[str, object]) -> None:
    """P-612: only the sources of P-601 count."""
    assert in_tree_source(pv) is None
