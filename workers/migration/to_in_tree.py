"""Translates a CSI driver's PV to its in-tree form (P-605..P-608).

The name, capacity, modes, mount options and annotations are kept. The csi block is removed, and
with it the identity, attributes and secret references that have no in-tree field.
Source: csi-translation-lib, TranslateCSIPVToInTree of each plugin.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

from workers.constants import ANN_AZURE_FILE_RESOURCE_GROUP
from workers.errors import AttemptError, State
from workers.migration import handles, plugins, regions, zones
from workers.migration.handles import HandleError
from workers.migration.parameters import ordered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workers.migration.plugins import Plugin

Volume = dict[str, Any]
Source = dict[str, Any]


def volume_to_in_tree(volume: Mapping[str, Any], driver_name: str) -> Volume:
    """Return the in-tree form of a CSI volume (P-606).

    Args:
        volume: a volume with a csi source; it is never mutated.
        driver_name: the name of the running driver, one of P-601.

    Raises:
        AttemptError: BACKGROUND, because the volume exists in the storage system (P-605). The
            caller still has the volume's CSI form, deletes the volume and sets the final state
            (D-001).
    """
    csi = (volume.get("spec") or {}).get("csi")
    if csi is None:
        raise AttemptError("CSI persistent volume was nil", State.BACKGROUND)
    plugin = plugins.of_driver(driver_name)
    if plugin is None:
        message = f"could not find in-tree plugin translation logic for {driver_name}"
        raise AttemptError(message, State.BACKGROUND)
    translated: Volume = copy.deepcopy(dict(volume))
    try:
        source = _SOURCES[plugin](translated, translated["spec"].pop("csi"))
        _move_zones(translated, plugin)
    except HandleError as error:
        raise AttemptError(str(error), State.BACKGROUND) from error
    translated["spec"][plugin.source_field] = source
    return translated


def _disk(csi: Source, id_field: str, volume_id: str) -> Source:
    """Return a source in API form; the file system and readOnly are present only if set."""
    source: Source = {id_field: volume_id}
    if csi.get("fsType"):
        source["fsType"] = csi["fsType"]
    if csi.get("readOnly"):
        source["readOnly"] = True
    return source


def _handle_as_id(_volume: Volume, csi: Source) -> Source:
    """Use the handle as the id (cinder and portworx)."""
    return _disk(csi, "volumeID", csi["volumeHandle"])


def _gce_pd(_volume: Volume, csi: Source) -> Source:
    source = _disk(csi, "pdName", handles.gce_disk_name(csi["volumeHandle"]))
    # Here, an empty partition means that there is no partition, whereas for aws-ebs it is an error.
    # Upstream treats both in the same way.
    if partition := _attributes(csi).get("partition"):
        _set_partition(source, partition, "Failed")
    return source


def _aws_ebs(volume: Volume, csi: Source) -> Source:
    source = _handle_as_id(volume, csi)
    partition = _attributes(csi).get("partition")
    if partition is not None:
        _set_partition(source, partition, "failed")
    return source


def _set_partition(source: Source, partition: str, failed: str) -> None:
    try:
        number = handles.atoi(partition)
    except HandleError as error:
        message = f"{failed} to convert partition {partition} to integer: {error}"
        raise HandleError(message) from error
    if number:
        source["partition"] = number


def _azure_disk(_volume: Volume, csi: Source) -> Source:
    uri = csi["volumeHandle"]
    source: Source = {
        "diskName": handles.azure_disk_name(uri),
        "diskURI": uri,
        "fsType": csi.get("fsType", ""),
        "kind": "Managed",
        "readOnly": bool(csi.get("readOnly", False)),
    }
    fields = {"cachingmode": "cachingMode", "fstype": "fsType"}
    for lowered, _, value in ordered(_attributes(csi)):
        if lowered in fields and value:
            source[fields[lowered]] = value
    return source


def _azure_file(volume: Volume, csi: Source) -> Source:
    """Get the share and secret from the attributes or handle; a stage secret takes precedence."""
    found = {lowered: value for lowered, _, value in ordered(_attributes(csi))}
    share, secret = found.get("sharename", ""), found.get("secretname", "")
    namespace = found.get("secretnamespace")
    stage_secret = csi.get("nodeStageSecretRef") or {}
    if stage_secret.get("name"):
        secret, namespace = stage_secret["name"], stage_secret.get("namespace", "")
    if not share or not secret:
        resource_group, account, handle_share = handles.azure_file_parts(csi["volumeHandle"])
        share = share or handle_share
        secret = secret or f"azure-storage-account-{account}-secret"
        _annotate(volume, ANN_AZURE_FILE_RESOURCE_GROUP, resource_group)
    source: Source = {
        "secretName": secret,
        "secretNamespace": "default" if namespace is None else namespace,
        "shareName": share,
    }
    if csi.get("readOnly"):
        source["readOnly"] = True
    return source


def _vsphere(_volume: Volume, csi: Source) -> Source:
    """Store the path, because in-tree vSphere volumes have no id; they have no readOnly (D-039)."""
    source = _disk(csi, "volumePath", _attributes(csi).get("initialvolumefilepath", ""))
    source.pop("readOnly", None)
    return source


def _move_zones(volume: Volume, plugin: Plugin) -> None:
    """Translate the topology by P-607 and P-608; azure and portworx volumes keep their topology."""
    region_of = {plugins.GCE_PD: regions.gce_region, plugins.AWS_EBS: regions.aws_region}
    if plugin is plugins.VSPHERE:
        assert plugin.zone_key is not None
        assert plugin.region_key is not None
        zones.to_zone_and_region_labels(volume, plugin.zone_key, plugin.region_key)
    elif plugin in (plugins.GCE_PD, plugins.AWS_EBS, plugins.CINDER):
        assert plugin.zone_key is not None
        try:
            zones.to_labels(volume, plugin.zone_key, region_of.get(plugin))
        except regions.RegionError as error:
            # Upstream prints the whole volume here, but its name is enough.
            name = volume.get("metadata", {}).get("name", "")
            dump = f"{{TypeMeta:{{Kind: APIVersion:}} ObjectMeta:{{Name:{name}}}}}"
            raise HandleError(
                f"failed to translate topology. PV:{dump}. "
                f"Error:Failed to handle region topology. error: {error}"
            ) from error


def _attributes(csi: Source) -> Mapping[str, str]:
    return csi.get("volumeAttributes") or {}


def _annotate(volume: Volume, key: str, value: str) -> None:
    if value:
        metadata = volume.setdefault("metadata", {})
        metadata["annotations"] = {**(metadata.get("annotations") or {}), key: value}


_SOURCES: Final[Mapping[Plugin, Callable[[Volume, Source], Source]]] = {
    plugins.GCE_PD: _gce_pd,
    plugins.AWS_EBS: _aws_ebs,
    plugins.CINDER: _handle_as_id,
    plugins.AZURE_DISK: _azure_disk,
    plugins.AZURE_FILE: _azure_file,
    plugins.VSPHERE: _vsphere,
    plugins.PORTWORX: _handle_as_id,
}
