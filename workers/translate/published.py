"""Builds the capability of an existing volume, for publishing and expanding (A-051, A-052).

Both calls must describe the volume in the same way (DR-004), so both use this module.
Source: external-attacher, pkg/controller/util.go GetVolumeCapabilities; csi-lib-utils, accessmodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from csi_client import messages as csi
from workers.errors import AttemptError, State
from workers.translate.fields import Json, text, text_list

if TYPE_CHECKING:
    from collections.abc import Collection

_Mode = csi.VolumeCapability.AccessMode

_RWOP: Final = "ReadWriteOncePod"


def volume_capability(
    volume: Json, *, default_fs_type: str, multi_writer: bool
) -> csi.VolumeCapability:
    """Return the capability of a PersistentVolume that has a CSI source.

    Args:
        volume: the volume; an in-tree volume must be translated to CSI.
        default_fs_type: `--default-fstype`, for volumes without a file system type.
        multi_writer: whether the driver reports SINGLE_NODE_MULTI_WRITER.

    Raises:
        AttemptError: NO_CHANGE; the access modes have no meaning in CSI.
    """
    modes = text_list(volume, "spec", "accessModes")
    capability = csi.VolumeCapability(
        access_mode=_Mode(mode=access_mode(modes, multi_writer=multi_writer))
    )
    if text(volume, "spec", "volumeMode") == "Block":
        capability.block.SetInParent()
        return capability
    capability.mount.SetInParent()
    capability.mount.fs_type = text(volume, "spec", "csi", "fsType") or default_fs_type
    capability.mount.mount_flags.extend(text_list(volume, "spec", "mountOptions"))
    return capability


def access_mode(
    modes: Collection[str], *, multi_writer: bool
) -> csi.VolumeCapability.AccessMode.Mode.ValueType:
    """Return the one CSI mode for all access modes of a volume; duplicates are ignored (A-052).

    Raises:
        AttemptError: NO_CHANGE; the combination has no meaning in CSI.
    """
    found = set(modes)
    if _RWOP in found:
        if found != {_RWOP}:
            raise _unsupported(
                "Kubernetes does not support use of ReadWriteOncePod with other access modes on "
                "the same PersistentVolume"
            )
        return _Mode.SINGLE_NODE_SINGLE_WRITER if multi_writer else _Mode.SINGLE_NODE_WRITER
    if "ReadWriteMany" in found:
        return _Mode.MULTI_NODE_MULTI_WRITER
    if {"ReadOnlyMany", "ReadWriteOnce"} <= found:
        raise _unsupported(
            "CSI does not support ReadOnlyMany and ReadWriteOnce on the same PersistentVolume"
        )
    if "ReadOnlyMany" in found:
        return _Mode.MULTI_NODE_READER_ONLY
    if "ReadWriteOnce" in found:
        return _Mode.SINGLE_NODE_MULTI_WRITER if multi_writer else _Mode.SINGLE_NODE_WRITER
    raise _unsupported(f"unsupported AccessMode combination: [{' '.join(modes)}]")


def _unsupported(message: str) -> AttemptError:
    return AttemptError(message, State.NO_CHANGE)
