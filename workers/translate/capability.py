"""Checks the driver's capabilities for a claim, and builds the volume's capabilities.

Source: external-provisioner, pkg/controller/controller.go checkDriverCapabilities,
getVolumeCapability; csi-lib-utils, accessmodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from csi_client import messages as csi
from workers.errors import AttemptError, State
from workers.translate.claims import access_modes, is_block
from workers.translate.fields import Json, text_list

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from workers.translate.sources import DataSource

_Mode = csi.VolumeCapability.AccessMode

_NO_PROVISIONING: Final = "CSI driver does not support dynamic provisioning: "

_MODES: Final = {
    "ReadWriteOnce": _Mode.SINGLE_NODE_WRITER,
    "ReadWriteOncePod": _Mode.SINGLE_NODE_WRITER,
    "ReadOnlyMany": _Mode.MULTI_NODE_READER_ONLY,
    "ReadWriteMany": _Mode.MULTI_NODE_MULTI_WRITER,
}
_MULTI_WRITER_MODES: Final = _MODES | {
    "ReadWriteOnce": _Mode.SINGLE_NODE_MULTI_WRITER,
    "ReadWriteOncePod": _Mode.SINGLE_NODE_SINGLE_WRITER,
}


def check_driver(
    plugin: Collection[str],
    controller: Collection[str],
    *,
    source: DataSource | None = None,
    needs_modify: bool = False,
) -> None:
    """Check that the driver can do what the claim needs (P-120, P-508).

    Args:
        plugin: the names of the plugin capabilities, spelled as in csi_client.capabilities.
        controller: the names of the controller capabilities.
        source: the source of the volume's content; None for an empty volume and for a deletion.
        needs_modify: whether the claim names a VolumeAttributesClass and the gate is on.

    Raises:
        AttemptError: Finished; a capability is missing. The first one is reported.
    """
    for is_needed, reported, name, kind, problem in (
        (True, plugin, "CONTROLLER_SERVICE", "plugin", _NO_PROVISIONING),
        (True, controller, "CREATE_DELETE_VOLUME", "controller", _NO_PROVISIONING),
        (
            source is not None and source.is_snapshot,
            controller,
            "CREATE_DELETE_SNAPSHOT",
            "controller",
            "CSI driver does not support snapshot restore: ",
        ),
        (
            source is not None and source.is_claim,
            controller,
            "CLONE_VOLUME",
            "controller",
            "CSI driver does not support clone operations: ",
        ),
        (
            needs_modify,
            controller,
            "MODIFY_VOLUME",
            "controller",
            "CSI driver does not support VolumeAttributesClass: ",
        ),
    ):
        if is_needed and name not in reported:
            word = f"{kind} {name} capability is not reported"
            raise AttemptError(f"{problem}{word}", State.FINISHED)


def volume_capabilities(
    claim: Json, storage_class: Json, fs_type: str, *, multi_writer: bool
) -> list[csi.VolumeCapability]:
    """Return one capability per access mode, in the claim's order (P-140, P-141).

    Args:
        claim: the claim; if it has no access modes, the result is an empty list.
        storage_class: the class; it contains the mount options.
        fs_type: the result of `parameters.fstype`; not used for block volumes.
        multi_writer: whether the driver reports SINGLE_NODE_MULTI_WRITER.

    Raises:
        AttemptError: Finished; an access mode is unknown.
    """
    table = _MULTI_WRITER_MODES if multi_writer else _MODES
    mount_flags = text_list(storage_class, "mountOptions")
    capabilities = []
    for mode in access_modes(claim):
        if mode not in table:
            raise AttemptError(f"unsupported AccessMode combination: [{mode}]", State.FINISHED)
        capability = csi.VolumeCapability(access_mode=_Mode(mode=table[mode]))
        if is_block(claim):
            capability.block.SetInParent()
        else:
            capability.mount.SetInParent()
            capability.mount.fs_type = fs_type
            capability.mount.mount_flags.extend(mount_flags)
        capabilities.append(capability)
    return capabilities


def is_read_only(
    capabilities: Sequence[csi.VolumeCapability], *, controller_publish_readonly: bool
) -> bool:
    """Return True if the volume is published read-only (P-701).

    The flag must be set, and ROX must be the only access mode.
    """
    return (
        controller_publish_readonly
        and len(capabilities) == 1
        and capabilities[0].access_mode.mode == _Mode.MULTI_NODE_READER_ONLY
    )
