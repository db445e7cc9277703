"""Reads common parts of requests: capabilities, mount options, size, source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.nfs_csi_driver.errors import RpcError, invalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from csi_client import messages as csi


def check_capabilities(capabilities: Sequence[csi.VolumeCapability]) -> None:
    """Check that there are capabilities, and none of them for block.

    Raises:
        RpcError: INVALID_ARGUMENT.
    """
    if not capabilities:
        raise invalid("volume capabilities missing in request")
    if any(one.HasField("block") for one in capabilities):
        raise invalid("block volume capability not supported")


def mount_options(
    capabilities: Sequence[csi.VolumeCapability], secrets: Mapping[str, str]
) -> list[str]:
    """Return the mount flags of the first capability, else those of the secret."""
    return list(capabilities[0].mount.mount_flags) or secret_options(secrets)


def secret_options(secrets: Mapping[str, str]) -> list[str]:
    """Return the mount options of the secret, its only value that is used (NF-026)."""
    return [one for one in secrets.get("mountOptions", "").split(",") if one]


def requested_size(capacity: csi.CapacityRange) -> int:
    """Return the required bytes of a volume; 0 if the request names none.

    Raises:
        RpcError: OUT_OF_RANGE.
    """
    required, limit = capacity.required_bytes, capacity.limit_bytes
    if required < 0 or limit < 0 or (limit and limit < required):
        raise RpcError("OUT_OF_RANGE", f"limit {limit} is below the required size {required}")
    return required


def source_text(request: csi.CreateVolumeRequest) -> str:
    """Return the content source as `snapshot:<id>` or `volume:<id>`; empty for none.

    Raises:
        RpcError: INVALID_ARGUMENT.
    """
    if not request.HasField("volume_content_source"):
        return ""
    source = request.volume_content_source
    if source.HasField("snapshot"):
        return f"snapshot:{source.snapshot.snapshot_id}"
    if source.HasField("volume"):
        return f"volume:{source.volume.volume_id}"
    raise invalid("unknown type of content source")
