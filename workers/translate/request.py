"""Builds CreateVolume requests, and converts them to and from the records in intents."""

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
    """Build the request; P-905 defines which fields are absent and which are empty.

    Args:
        name: the result of `names.volume_name`; the same for every attempt of a claim (P-425).
        required_bytes: the result of `claims.requested_bytes`; the capacity range is sent even
            if it is 0, and never has a limit (P-138).
        capabilities: the result of `capability.volume_capabilities`.
        parameters: the stripped parameters, with the extra metadata if enabled.
        secrets: the decoded data of the provisioner secret.
        content_source: the source to copy from; None for an empty volume.
        requirements: the topology requirement; None to leave the field unset.
        mutable_parameters: the parameters of the VolumeAttributesClass.

    Raises:
        AttemptError: NoChange; a string cannot be encoded. It is not shown, because it may be a
            secret.
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
    """Return the request as JSON without its secrets, for storage in the intent."""
    kept = csi.CreateVolumeRequest()
    kept.CopyFrom(request)
    kept.ClearField("secrets")
    return MessageToDict(kept, preserving_proto_field_name=True)


def repeated_request(recorded: Mapping[str, Any]) -> csi.CreateVolumeRequest:
    """Return the recorded request, without fields that are unknown to this version.

    Raises:
        AttemptError: NO_CHANGE; the record is not a valid request.
    """
    try:
        return ParseDict(dict(recorded), csi.CreateVolumeRequest(), ignore_unknown_fields=True)
    except (ParseError, TypeError, ValueError) as error:
        raise AttemptError(
            f"the recorded CreateVolume request cannot be read ({error}). Check it with `csi-fleet "
            "audit`",
            State.NO_CHANGE,
        ) from None
