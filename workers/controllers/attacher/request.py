"""Builds the driver's publish and unpublish requests (A-050 to A-052). Pure.

Source: kubernetes-csi/external-attacher, pkg/controller/csi_handler.go; csi-lib-utils, accessmodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from csi_client import messages as csi
from workers.controllers.attacher.source import AttachError
from workers.errors import AttemptError
from workers.translate.published import volume_capability

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.controllers.attacher.source import Source

_MULTI_NODE: Final = frozenset({"ReadOnlyMany", "ReadWriteMany"})


def is_multi_node(source: Source) -> bool:
    """Return True if several nodes can have the volume at once."""
    return not _MULTI_NODE.isdisjoint(source.spec.get("accessModes") or ())


def capability(source: Source, *, default_fstype: str, multi_writer: bool) -> csi.VolumeCapability:
    """How the volume is used: block or mounted, and the access mode (A-051, A-052).

    Raises:
        AttachError: CSI cannot express the access modes.
    """
    try:
        return volume_capability(
            {"spec": source.spec}, default_fs_type=default_fstype, multi_writer=multi_writer
        )
    except AttemptError as error:
        raise AttachError(error.message) from None


def publish_request(
    source: Source,
    how: csi.VolumeCapability,
    node_id: str,
    secrets: Mapping[str, str],
    *,
    has_readonly: bool,
) -> csi.ControllerPublishVolumeRequest:
    """The publish request (A-050); `has_readonly`: the driver supports PUBLISH_READONLY."""
    attributes: Mapping[str, Any] = source.csi.get("volumeAttributes") or {}
    return csi.ControllerPublishVolumeRequest(
        volume_id=source.handle,
        node_id=node_id,
        volume_capability=how,
        readonly=has_readonly and bool(source.csi.get("readOnly")),
        secrets=secrets,
        volume_context=attributes,
    )


def unpublish_request(
    handle: str, node_id: str, secrets: Mapping[str, str]
) -> csi.ControllerUnpublishVolumeRequest:
    """The unpublish request for one node; an empty node id would mean all nodes (A-122)."""
    assert node_id
    return csi.ControllerUnpublishVolumeRequest(volume_id=handle, node_id=node_id, secrets=secrets)
