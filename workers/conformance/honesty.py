"""Checks for the driver's identity and capabilities, and for its list calls."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.conformance.report import Broken, Check

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from workers.conformance.subject import Subject

_NAME: Final = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?")
MAX_NAME: Final = 63
_HEALTH: Final = "Controller/ControllerGetVolumeHealth"
_GET_HEALTH: Final = csi.ControllerGetVolumeHealthResponse

# Maps each capability to a harmless call that a driver with the capability must implement.
CALLS: Final[dict[str, tuple[str, type[Message], type[Message]]]] = {
    "LIST_VOLUMES": (
        "Controller/ListVolumes", csi.ListVolumesRequest, csi.ListVolumesResponse),
    "GET_VOLUME": (
        "Controller/ControllerGetVolume",
        csi.ControllerGetVolumeRequest,
        csi.ControllerGetVolumeResponse,
    ),
    "LIST_VOLUME_HEALTH": (
        "Controller/ControllerListVolumeHealth",
        csi.ControllerListVolumeHealthRequest,
        csi.ControllerListVolumeHealthResponse,
    ),
    "GET_VOLUME_HEALTH": (
        "Controller/ControllerGetVolumeHealth",
        csi.ControllerGetVolumeHealthRequest,
        csi.ControllerGetVolumeHealthResponse,
    ),
    "GET_CAPACITY": (
        "Controller/GetCapacity", csi.GetCapacityRequest, csi.GetCapacityResponse),
    "LIST_SNAPSHOTS": (
        "Controller/ListSnapshots", csi.ListSnapshotsRequest, csi.ListSnapshotsResponse),
    "CREATE_DELETE_SNAPSHOT": (
        "Controller/DeleteSnapshot", csi.DeleteSnapshotRequest, csi.DeleteSnapshotResponse),
    "EXPAND_VOLUME": (
        "Controller/ControllerExpandVolume",
        csi.ControllerExpandVolumeRequest,
        csi.ControllerExpandVolumeResponse,
    ),
    "PUBLISH_UNPUBLISH_VOLUME": (
        "Controller/ControllerPublishVolume",
        csi.ControllerPublishVolumeRequest,
        csi.ControllerPublishVolumeResponse,
    ),
    "MODIFY_VOLUME": (
        "Controller/ControllerModifyVolume",
        csi.ControllerModifyVolumeRequest,
        csi.ControllerModifyVolumeResponse,
    ),
}  # fmt: skip


def identity(subject: Subject) -> None:
    """The driver reports a valid name and a version, and that it is ready."""
    name, version = subject.client.plugin_info()
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise Broken(f"driver name {name!r} is not a domain name of at most {MAX_NAME} characters")
    if not version:
        raise Broken("GetPluginInfo has no vendor_version")
    if not subject.client.probe():
        raise Broken("Probe reports that the driver is not ready")


def capabilities(subject: Subject) -> None:
    """The driver has the capabilities that the provisioner requires at startup."""
    if "UNKNOWN" in subject.capabilities:
        raise Broken("a capability of type UNKNOWN is reported")
    for name in ("CONTROLLER_SERVICE", "CREATE_DELETE_VOLUME"):
        if name not in subject.capabilities:
            raise Broken(f"{name} is not reported")


def honest(subject: Subject) -> None:
    """The driver implements every call that its capabilities promise."""
    missing = [
        name
        for name, call in CALLS.items()
        if name in subject.capabilities and _code(subject, call) == errors.UNIMPLEMENTED
    ]
    if missing:
        raise Broken(f"{', '.join(missing)} is reported, but its call returns Unimplemented")


def health(subject: Subject) -> None:
    """The health of a new volume can be read, and a missing volume is reported as missing."""
    names = {"LIST_VOLUME_HEALTH", "GET_VOLUME_HEALTH"} & subject.capabilities
    if names == {"LIST_VOLUME_HEALTH"}:
        raise Broken("LIST_VOLUME_HEALTH is reported without GET_VOLUME_HEALTH")
    subject.need("GET_VOLUME_HEALTH")
    volume_id = subject.create(subject.name()).volume_id
    request = csi.ControllerGetVolumeHealthRequest(volume_id=volume_id)
    answer = subject.client.call(_HEALTH, request, _GET_HEALTH)
    found = [(one.status, one.reason) for one in answer.volume_health.health_statuses]
    if len(found) != len(set(found)):
        raise Broken("a volume's health has two entries with the same status and reason")
    if any(not reason for _, reason in found):
        raise Broken("an entry of a volume's health has no reason")
    subject.refused(
        "ControllerGetVolumeHealth of a volume that does not exist",
        lambda: subject.client.call(
            _HEALTH,
            csi.ControllerGetVolumeHealthRequest(volume_id="no-such-volume"),
            _GET_HEALTH,
        ),
        errors.NOT_FOUND,
    )


def capacity(subject: Subject) -> None:
    """GetCapacity returns a number that can be published."""
    subject.need("GET_CAPACITY")
    answer = subject.client.get_capacity(
        csi.GetCapacityRequest(parameters=dict(subject.parameters))
    )
    if answer.available_capacity < 0:
        raise Broken(f"available_capacity is {answer.available_capacity}")


def paging(subject: Subject) -> None:
    """ListVolumes returns every volume exactly once, for any page size."""
    subject.need("LIST_VOLUMES")
    made = {subject.create(subject.name()).volume_id for _ in range(3)}
    token, found, pages = "", list[str](), 0
    while pages == 0 or token:
        page = _page(subject, token, 1)
        if len(page.entries) > 1:
            raise Broken(f"a request with max_entries=1 returned {len(page.entries)} entries")
        found += [entry.volume.volume_id for entry in page.entries]
        token, pages = page.next_token, pages + 1
        if pages > 10_000:
            raise Broken("ListVolumes never returns a last page")
    doubles = sorted({one for one in found if found.count(one) > 1})
    if doubles:
        raise Broken(f"the pages contain volumes twice: {', '.join(doubles)}")
    if missing := made - set(found):
        raise Broken(f"the pages do not contain these volumes: {', '.join(sorted(missing))}")
    subject.refused(
        "ListVolumes with a page token that the driver did not return",
        lambda: _page(subject, "no-such-token", 1),
        errors.ABORTED,
    )


def _page(subject: Subject, token: str, size: int) -> csi.ListVolumesResponse:
    request = csi.ListVolumesRequest(starting_token=token, max_entries=size)
    return subject.client.call("Controller/ListVolumes", request, csi.ListVolumesResponse)


def _code(subject: Subject, call: tuple[str, Any, Any]) -> int | None:
    method, request_type, answer_type = call
    try:
        subject.client.call(method, request_type(), answer_type)
    except CsiError as error:
        return error.code
    return errors.OK


CHECKS: Final = (
    Check("identity", "The provisioner cannot register the driver", identity),
    Check(
        "capabilities", "The provisioner rejects a driver without these capabilities", capabilities
    ),
    Check("capability-honesty", "csi-fleet relies on the reported capabilities", honest),
    Check("volume-health", "The controller `health` would report wrong conditions", health),
    Check("capacity", "The scheduler bases its decisions on this number", capacity),
    Check(
        "list-paging",
        "Tools that compare volumes with PVs would find too many or too few volumes",
        paging,
    ),
)
