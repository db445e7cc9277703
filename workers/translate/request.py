"""What exactly is sent to CreateVolume?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from csi_client import messages as csi
from workers.errors import AttemptError, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.translate.sources import ContentSource


def build_request(
    *,
    name: str,
    required_bytes: int,
    capabilities: Iterable[csi.VolumeCapability],
    parameters: Mapping[str, str],
    secrets: Mapping[str, str],
    content_source: ContentSource | None = None,
    requirements: csi.TopologyRequirement | None = None,
    mutable_parameters: Mapping[str, str] | None = None,
) -> csi.CreateVolumeRequest:
    """Build the request; absent and empty differ on the wire as in P-905.

    Args:
        name: `names.volume_name`; the same for every attempt of a claim (P-425).
        required_bytes: `claims.requested_bytes`; the range is sent even when 0, never with a limit
            (P-138).
        capabilities: `capability.volume_capabilities`.
        parameters: stripped, plus the extra metadata if asked for.
        secrets: decoded data of the provisioner secret.
        content_source: what to copy from, None for an empty volume.
        requirements: topology, None when the field stays unset.
        mutable_parameters: of the VolumeAttributesClass.

    Raises:
        AttemptError: NoChange; a text cannot be encoded. It is not shown, it may be a secret.
    """
    problem = ""
    request = csi.CreateVolumeRequest()
    try:
        request = csi.CreateVolumeRequest(
            name=name,
            capacity_range=csi.CapacityRange(required_bytes=required_bytes),
            volume_capabilities=capabilities,
            parameters=parameters,
            secrets=secrets,
            accessibility_requirements=requirements,
            mutable_parameters=mutable_parameters or {},
        )
        if content_source is not None and content_source.snapshot_id:
            request.volume_content_source.snapshot.snapshot_id = content_source.snapshot_id
        elif content_source is not None:
            request.volume_content_source.volume.volume_id = content_source.volume_id
    except (TypeError, ValueError) as error:
        problem = type(error).__name__
    if problem:  # raised outside `except`: the caught error may hold a secret
        raise AttemptError(
            f"CreateVolume request for volume {name} cannot be encoded ({problem}): "
            "a parameter, secret or handle is not valid text",
            State.NO_CHANGE,
        )
    return request


def recorded_request(request: csi.CreateVolumeRequest) -> dict[str, Any]:
    """The request as JSON, without its secrets: what a record keeps of a call."""
    kept = csi.CreateVolumeRequest()
    kept.CopyFrom(request)
    kept.ClearField("secrets")
    return MessageToDict(kept, preserving_proto_field_name=True)


def repeated_request(recorded: Mapping[str, Any]) -> csi.CreateVolumeRequest:
    """The recorded request; fields that this version does not know are left out.

    Raises:
        AttemptError: NO_CHANGE; it is no request.
    """
    try:
        return ParseDict(dict(recorded), csi.CreateVolumeRequest(), ignore_unknown_fields=True)
    except (ParseError, TypeError, ValueError) as error:
        raise AttemptError(
            f"the recorded CreateVolume request cannot be read ({error}): csi-fleet audit shows it",
            State.NO_CHANGE,
        ) from None
