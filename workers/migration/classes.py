"""Translates an in-tree plugin's StorageClass for the CSI driver (P-602..P-604).

The result is a copy of the class with the parameters and allowed topologies that the driver
expects. The provisioner remains the in-tree one, except for portworx. The reclaim policy and mount
options of the stored volume come from the original class, so callers must also keep the original.

If parameters are ambiguous (`zone` and `zones`, or two spellings of one key), the last one in the
order of `workers.migration.parameters` wins (D-026).
Source: csi-translation-lib, TranslateInTreeStorageClassToCSI of each plugin.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, Final

from workers.constants import (
    ANN_PORTWORX_SECRET_NAME,
    ANN_PORTWORX_SECRET_NAMESPACE,
    LABEL_ZONE,
    LABEL_ZONE_BETA,
    PARAMETER_PREFIX,
)
from workers.errors import AttemptError, State
from workers.migration import plugins
from workers.migration.parameters import ordered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workers.migration.plugins import Plugin

StorageClass = dict[str, Any]

_FSTYPE: Final = PARAMETER_PREFIX + "fstype"
_ZONE_LABELS: Final = (LABEL_ZONE, LABEL_ZONE_BETA)

# vSphere: the parameters that are renamed to `<name>-migrationparam`; `storagepolicyname` is not
# renamed.
_VSPHERE_RENAMED: Final = frozenset(
    {
        "cachereservation",
        "datastore",
        "diskformat",
        "diskstripes",
        "forceprovisioning",
        "hostfailurestotolerate",
        "iopslimit",
        "objectspacereservation",
    }
)
_VSPHERE_KNOWN: Final = _VSPHERE_RENAMED | {"fstype", "storagepolicyname"}

_PORTWORX_SECRETS: Final = (
    "provisioner",
    "controller-publish",
    "node-publish",
    "node-stage",
    "controller-expand",
    "node-expand",
)


def is_migrated(storage_class: Mapping[str, Any], driver_name: str) -> bool:
    """Return True if the class names this driver's in-tree plugin and needs translation (P-602)."""
    in_tree = plugins.in_tree_name(driver_name)
    return in_tree is not None and storage_class.get("provisioner") == in_tree


def translate_class(storage_class: Mapping[str, Any], in_tree: str) -> StorageClass:
    """Return the class translated for the CSI driver that replaces an in-tree plugin (P-602).

    This is step 8 of P-101.

    Args:
        storage_class: the class; it is never mutated, and the result shares no objects with it.
        in_tree: the name of the in-tree plugin, which is the class's provisioner.

    Raises:
        AttemptError: FINISHED, `failed to translate storage class: <err>`.
    """
    try:
        return class_to_csi(storage_class, in_tree)
    except AttemptError as error:
        message = f"failed to translate storage class: {error.message}"
        raise AttemptError(message, State.FINISHED) from error


def class_to_csi(storage_class: Mapping[str, Any], in_tree: str) -> StorageClass:
    """Translate as `translate_class` does, but raise the bare message, for deletions (P-513).

    Raises:
        AttemptError: FINISHED, because zones are specified twice (P-604), or because the plugin
            is unknown.
    """
    plugin = plugins.of_in_tree(in_tree)
    if plugin is None:
        quoted = json.dumps(in_tree, ensure_ascii=False)
        raise AttemptError(
            "could not find in-tree storage class parameter translation logic for " + quoted,
            State.FINISHED,
        )
    translated: StorageClass = copy.deepcopy(dict(storage_class))
    _TRANSLATORS[plugin](translated, plugin)
    return translated


def dropped_parameters(storage_class: Mapping[str, Any], in_tree: str) -> list[str]:
    """Return the keys of the parameters that a translation drops, sorted, for the log (P-603).

    Only the translation for vSphere drops parameters.
    """
    if in_tree != plugins.VSPHERE.in_tree_name:
        return []
    return sorted(
        key
        for lowered, key, _ in ordered(storage_class.get("parameters"))
        if lowered not in _VSPHERE_KNOWN
    )


def _zonal(storage_class: StorageClass, plugin: Plugin, *, prefix_fstype: bool = True) -> None:
    """Prefix fstype, and turn zones into allowed topologies, for gce-pd and aws-ebs."""
    parameters: dict[str, str] = {}
    zones: list[str] | None = None
    for lowered, key, value in ordered(storage_class.get("parameters")):
        if lowered == "zone":
            zones = [value]
        elif lowered == "zones":
            zones = value.split(",")  # not trimmed: as in upstream, blanks reach the driver
        elif lowered == "fstype" and prefix_fstype:
            parameters[_FSTYPE] = value
        else:
            parameters[key] = value
    storage_class["parameters"] = parameters
    _set_topologies(storage_class, plugin, zones)


def _aws_ebs(storage_class: StorageClass, plugin: Plugin) -> None:
    _zonal(storage_class, plugin)
    parameters = storage_class["parameters"]
    if any(key.lower() == "iopspergb" for key in parameters):
        parameters["allowautoiopspergbincrease"] = "true"


def _azure_disk(storage_class: StorageClass, plugin: Plugin) -> None:
    """Keep plain `fstype`, and replace numeric zones with an empty value.

    Such a number is not a zone but a fault domain, in a region without zones.
    """
    _zonal(storage_class, plugin, prefix_fstype=False)
    for expression in _topology_expressions(storage_class):
        if expression.get("key") == plugin.zone_key:
            values = expression.get("values") or []
            expression["values"] = ["" if _is_number(value) else value for value in values]


def _cinder(storage_class: StorageClass, plugin: Plugin) -> None:
    """Keep `availability` as a parameter, because cinder has no zone parameter."""
    storage_class["parameters"] = {
        _FSTYPE if lowered == "fstype" else key: value
        for lowered, key, value in ordered(storage_class.get("parameters"))
    }
    _rename_zone_keys(storage_class, plugin)


def _azure_file(storage_class: StorageClass, plugin: Plugin) -> None:
    """Leave the class unchanged."""


def _vsphere(storage_class: StorageClass, plugin: Plugin) -> None:
    """Keep only known parameters; add `csimigration`, so that the driver returns a file path."""
    parameters: dict[str, str] = {}
    for lowered, _, value in ordered(storage_class.get("parameters")):
        if lowered == "fstype":
            parameters[_FSTYPE] = value
        elif lowered == "storagepolicyname":
            parameters[lowered] = value
        elif lowered in _VSPHERE_RENAMED:
            parameters[f"{lowered}-migrationparam"] = value
    parameters["csimigration"] = "true"
    storage_class["parameters"] = parameters
    _rename_zone_keys(storage_class, plugin)


def _portworx(storage_class: StorageClass, plugin: Plugin) -> None:
    """Use one secret for all six purposes; change the provisioner to the CSI driver."""
    storage_class["provisioner"] = plugin.driver_name
    suffixes = {
        ANN_PORTWORX_SECRET_NAME: "-secret-name",
        ANN_PORTWORX_SECRET_NAMESPACE: "-secret-namespace",
    }
    parameters: dict[str, str] = {}
    for lowered, key, value in ordered(storage_class.get("parameters")):
        suffix = suffixes.get(lowered)
        if suffix is None:
            parameters[key] = value
        else:
            uses = (PARAMETER_PREFIX + use + suffix for use in _PORTWORX_SECRETS)
            parameters.update(dict.fromkeys(uses, value))
    if parameters:
        storage_class["parameters"] = parameters


def _set_topologies(storage_class: StorageClass, plugin: Plugin, zones: list[str] | None) -> None:
    """Set zones from the parameters or from allowedTopologies; having both is an error (P-604)."""
    if zones is None:
        _rename_zone_keys(storage_class, plugin)
        return
    if storage_class.get("allowedTopologies"):
        raise AttemptError(
            "cannot simultaneously set allowed topologies and zone/zones parameters",
            State.FINISHED,
        )
    storage_class["allowedTopologies"] = [
        {"matchLabelExpressions": [{"key": plugin.zone_key, "values": zones}]}
    ]


def _rename_zone_keys(storage_class: StorageClass, plugin: Plugin) -> None:
    """Rename zone labels to the driver's key; leave all other keys, even regions, unchanged."""
    for expression in _topology_expressions(storage_class):
        if expression.get("key") in _ZONE_LABELS:
            expression["key"] = plugin.zone_key


def _topology_expressions(storage_class: StorageClass) -> list[dict[str, Any]]:
    return [
        expression
        for term in storage_class.get("allowedTopologies") or []
        for expression in term.get("matchLabelExpressions") or []
    ]


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit()


_TRANSLATORS: Final[Mapping[Plugin, Callable[[StorageClass, Plugin], None]]] = {
    plugins.GCE_PD: _zonal,
    plugins.AWS_EBS: _aws_ebs,
    plugins.CINDER: _cinder,
    plugins.AZURE_DISK: _azure_disk,
    plugins.AZURE_FILE: _azure_file,
    plugins.VSPHERE: _vsphere,
    plugins.PORTWORX: _portworx,
}
