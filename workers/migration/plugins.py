"""The table of in-tree plugins and the CSI drivers that replace them (P-601), with lookups.

Source: kubernetes/csi-translation-lib, translate.go, which no longer contains Ceph RBD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Plugin:
    """One row of the table P-601.

    Attributes:
        driver_name: the name of the CSI driver.
        in_tree_name: the provisioner name of the in-tree plugin.
        source_field: the field of a volume's spec that holds the in-tree source.
        zone_key: the driver's topology key for zones; None if it has none.
        region_key: the driver's topology key for regions; only vSphere has one.
    """

    driver_name: str
    in_tree_name: str
    source_field: str
    zone_key: str | None = None
    region_key: str | None = None


GCE_PD: Final = Plugin(
    "pd.csi.storage.gke.io",
    "kubernetes.io/gce-pd",
    "gcePersistentDisk",
    "topology.gke.io/zone",
)
AWS_EBS: Final = Plugin(
    "ebs.csi.aws.com",
    "kubernetes.io/aws-ebs",
    "awsElasticBlockStore",
    "topology.ebs.csi.aws.com/zone",
)
CINDER: Final = Plugin(
    "cinder.csi.openstack.org",
    "kubernetes.io/cinder",
    "cinder",
    "topology.cinder.csi.openstack.org/zone",
)
AZURE_DISK: Final = Plugin(
    "disk.csi.azure.com",
    "kubernetes.io/azure-disk",
    "azureDisk",
    "topology.disk.csi.azure.com/zone",
)
AZURE_FILE: Final = Plugin("file.csi.azure.com", "kubernetes.io/azure-file", "azureFile")
VSPHERE: Final = Plugin(
    "csi.vsphere.vmware.com",
    "kubernetes.io/vsphere-volume",
    "vsphereVolume",
    "topology.csi.vmware.com/zone",
    "topology.csi.vmware.com/region",
)
PORTWORX: Final = Plugin("pxd.portworx.com", "kubernetes.io/portworx-volume", "portworxVolume")

PLUGINS: Final = (GCE_PD, AWS_EBS, CINDER, AZURE_DISK, AZURE_FILE, VSPHERE, PORTWORX)

_BY_DRIVER: Final = {plugin.driver_name: plugin for plugin in PLUGINS}
_BY_IN_TREE: Final = {plugin.in_tree_name: plugin for plugin in PLUGINS}


def of_driver(driver_name: str) -> Plugin | None:
    """Return the row for a CSI driver; None if the driver replaces no in-tree plugin."""
    return _BY_DRIVER.get(driver_name)


def of_in_tree(in_tree: str) -> Plugin | None:
    """Return the row for an in-tree provisioner name; None if the name is not in P-601."""
    return _BY_IN_TREE.get(in_tree)


def of_volume(volume: Mapping[str, Any]) -> Plugin | None:
    """Return the row for a volume's in-tree source, whichever driver is running (P-612)."""
    spec = volume.get("spec") or {}
    return next((row for row in PLUGINS if spec.get(row.source_field) is not None), None)


def in_tree_name(driver_name: str) -> str | None:
    """Return the in-tree name that a driver also serves; None if there is none (P-009)."""
    plugin = of_driver(driver_name)
    return plugin.in_tree_name if plugin else None


def in_tree_source(volume: Mapping[str, Any]) -> str | None:
    """Return the in-tree plugin of a volume's source; None for CSI and other volumes (P-612)."""
    plugin = of_volume(volume)
    return plugin.in_tree_name if plugin else None
