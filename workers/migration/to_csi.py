"""Translates a stored in-tree volume to its CSI form (P-610..P-612).

Used before a deletion, and before a clone reads its source (D-004). Every in-tree source of P-601
is accepted; the caller has already decided which driver owns the volume.
Source: csi-translation-lib, TranslateInTreePVToCSI of each plugin.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, Final

from workers.constants import (
    ANN_AZURE_FILE_RESOURCE_GROUP,
    ANN_PORTWORX_SECRET_NAME,
    ANN_PORTWORX_SECRET_NAMESPACE,
    LABEL_ZONE,
    LABEL_ZONE_BETA,
)
from workers.errors import AttemptError, State
from workers.migration import handles, plugins, zones
from workers.migration.handles import HandleError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workers.migration.plugins import Plugin

Volume = dict[str, Any]
Source = dict[str, Any]

_PORTWORX_REFS: Final = (
    "controllerPublishSecretRef",
    "nodeStageSecretRef",
    "nodePublishSecretRef",
    "controllerExpandSecretRef",
    "nodeExpandSecretRef",
)

_NO_SOURCES: Final = frozenset(
    {
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    }
)


def volume_to_csi(volume: Mapping[str, Any]) -> Volume:
    """Return the CSI form of an in-tree volume (P-610), with the driver's topology keys (P-611).

    Args:
        volume: a volume with an in-tree source of P-601; it is never mutated.

    Raises:
        AttemptError: NO_CHANGE, because no call was made; the message is upstream's.
    """
    plugin = plugins.of_volume(volume)
    if plugin is None:
        name = json.dumps((volume.get("metadata") or {}).get("name", ""), ensure_ascii=False)
        message = f"could not find in-tree plugin translation logic for {name}"
        raise AttemptError(message, State.NO_CHANGE)
    translated: Volume = copy.deepcopy(dict(volume))
    source = translated["spec"].pop(plugin.source_field)
    try:
        block = _BLOCKS[plugin](translated, source)
    except HandleError as error:
        raise AttemptError(str(error), State.NO_CHANGE) from error
    translated["spec"]["csi"] = {"driver": plugin.driver_name, **block}
    _move_zones(translated, plugin)
    return translated


def _block(handle: str, source: Source, attributes: Mapping[str, str]) -> Source:
    """Return a csi block in API form: without empty and false fields."""
    block: Source = {"volumeHandle": handle}
    if source.get("fsType"):
        block["fsType"] = source["fsType"]
    if source.get("readOnly"):
        block["readOnly"] = True
    if attributes:
        block["volumeAttributes"] = dict(attributes)
    return block


def _gce_pd(volume: Volume, source: Source) -> Source:
    labels = _metadata(volume, "labels")
    zone_label = labels.get(LABEL_ZONE_BETA) or labels.get(LABEL_ZONE) or ""
    partition = str(source.get("partition") or "")
    if "accessModes" in volume["spec"]:
        volume["spec"]["accessModes"] = _gce_access_modes(volume["spec"]["accessModes"])
    handle = handles.gce_handle(source["pdName"], zone_label)
    return _block(handle, source, {"partition": partition})


def _gce_access_modes(modes: list[str]) -> list[str]:
    """Return one mode that allows the driver to attach; in-tree plugins ignored modes (T-186)."""
    kept = {"ReadWriteOnce" if mode == "ReadWriteMany" else mode for mode in modes}
    if "ReadOnlyMany" in kept and "ReadWriteOnce" not in kept:
        return ["ReadOnlyMany"]
    return ["ReadWriteOnce"]


def _aws_ebs(_volume: Volume, source: Source) -> Source:
    try:
        handle = handles.aws_volume_id(source["volumeID"])
    except HandleError as error:
        raise HandleError(f"failed to translate Kubernetes ID to EBS Volume ID {error}") from error
    return _block(handle, source, {"partition": str(source.get("partition") or 0)})


def _cinder(_volume: Volume, source: Source) -> Source:
    return _block(source["volumeID"], source, {})


def _azure_disk(_volume: Volume, source: Source) -> Source:
    kind = source.get("kind")
    if kind is not None and kind.lower() != "managed":
        raise HandleError(f"kind({kind}) is not supported in csi migration")
    attributes = {"kind": "Managed"}
    for field in ("cachingMode", "fsType"):
        if source.get(field) is not None:
            attributes[field.lower()] = source[field]
    return _block(source["diskURI"], source, attributes)


def _azure_file(volume: Volume, source: Source) -> Source:
    """Build a handle with all that the driver needs, including the volume and secret namespace."""
    namespace = source.get("secretNamespace")
    if namespace is None:
        namespace = (volume["spec"].get("claimRef") or {}).get("namespace")
    if not namespace:
        raise HandleError("could not find a secret namespace in PersistentVolumeSource or ClaimRef")
    secret, share = source["secretName"], source["shareName"]
    resource_group = _metadata(volume, "annotations").get(ANN_AZURE_FILE_RESOURCE_GROUP, "")
    parts = (
        resource_group,
        handles.azure_account(secret),
        share,
        volume["metadata"]["name"],
        namespace,
    )
    block = _block("#".join(parts), {"readOnly": source.get("readOnly")}, {"sharename": share})
    block["nodeStageSecretRef"] = {"name": secret, "namespace": namespace}
    return block


def _vsphere(_volume: Volume, source: Source) -> Source:
    policy = source.get("storagePolicyName")
    return _block(source["volumePath"], source, {"storagepolicyname": policy} if policy else {})


def _portworx(volume: Volume, source: Source) -> Source:
    """Omit readOnly, as upstream does (D-039), because a deletion does not need it."""
    block = _block(source["volumeID"], {"fsType": source.get("fsType")}, {})
    annotations = _metadata(volume, "annotations")
    if {ANN_PORTWORX_SECRET_NAME, ANN_PORTWORX_SECRET_NAMESPACE} <= annotations.keys():
        reference = {
            "name": annotations[ANN_PORTWORX_SECRET_NAME],
            "namespace": annotations[ANN_PORTWORX_SECRET_NAMESPACE],
        }
        block.update({field: dict(reference) for field in _PORTWORX_REFS})
    return block


def _move_zones(volume: Volume, plugin: Plugin) -> None:
    if plugin is plugins.VSPHERE:
        assert plugin.zone_key is not None
        assert plugin.region_key is not None
        zones.to_zone_and_region_keys(volume, plugin.zone_key, plugin.region_key)
    elif plugin in (plugins.GCE_PD, plugins.AWS_EBS, plugins.CINDER):
        assert plugin.zone_key is not None
        zones.to_zone_key(volume, plugin.zone_key)


def _metadata(volume: Volume, field: str) -> Mapping[str, str]:
    """Return the labels or annotations of a volume; empty if they are absent."""
    return (volume.get("metadata") or {}).get(field) or {}


_BLOCKS: Final[Mapping[Plugin, Callable[[Volume, Source], Source]]] = {
    plugins.GCE_PD: _gce_pd,
    plugins.AWS_EBS: _aws_ebs,
    plugins.CINDER: _cinder,
    plugins.AZURE_DISK: _azure_disk,
    plugins.AZURE_FILE: _azure_file,
    plugins.VSPHERE: _vsphere,
    plugins.PORTWORX: _portworx,
}


def storage_of(volume: Mapping[str, Any]) -> tuple[str, str]:
    """Return the driver and the handle of a CSI or in-tree PV; ("", "") for any other PV."""
    if plugins.in_tree_source(volume) is not None:
        try:
            volume = volume_to_csi(volume)
        except AttemptError:
            return "", ""
    named = (volume.get("spec") or {}).get("csi") or {}
    return named.get("driver") or "", named.get("volumeHandle") or ""


def is_same_storage(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if two PVs, in CSI or in-tree form, refer to the same stored volume."""
    places = storage_of(one), storage_of(other)
    if places != (("", ""), ("", "")):
        return places[0] == places[1]
    return bool(_sources(one)) and _sources(one) == _sources(other)


def _sources(volume: Mapping[str, Any]) -> Source:
    return {name: value for name, value in volume["spec"].items() if name not in _NO_SOURCES}
