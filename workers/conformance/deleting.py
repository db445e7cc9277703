"""Checks for DeleteVolume, and for what remains after a deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.conformance.report import Broken, Check

if TYPE_CHECKING:
    from workers.conformance.subject import Subject


def missing_id(subject: Subject) -> None:
    """A request without an id is refused."""
    subject.refused(
        "DeleteVolume without an id", lambda: subject.delete(""), errors.INVALID_ARGUMENT
    )


def unknown(subject: Subject) -> None:
    """Deleting an unknown volume succeeds."""
    _must_work(subject, subject.name(), "DeleteVolume of an id that does not exist")


def repeat(subject: Subject) -> None:
    """A repeated deletion succeeds."""
    volume = subject.create(subject.name())
    _must_work(subject, volume.volume_id, "DeleteVolume")
    _must_work(subject, volume.volume_id, "a repeated DeleteVolume call")


def really(subject: Subject) -> None:
    """After the driver has returned OK, the volume no longer exists."""
    volume = subject.create(subject.name())
    _must_work(subject, volume.volume_id, "DeleteVolume")
    if "LIST_VOLUMES" in subject.capabilities and volume.volume_id in subject.listed():
        raise Broken("DeleteVolume returned OK, but ListVolumes still shows the volume")
    request = csi.ValidateVolumeCapabilitiesRequest(
        volume_id=volume.volume_id,
        volume_capabilities=subject.request("x").volume_capabilities,
        volume_context=volume.volume_context,
        parameters=dict(subject.parameters),
        secrets=dict(subject.secrets),
    )
    subject.refused(
        "ValidateVolumeCapabilities of a deleted volume",
        lambda: subject.client.call(
            "Controller/ValidateVolumeCapabilities",
            request,
            csi.ValidateVolumeCapabilitiesResponse,
        ),
        errors.NOT_FOUND,
    )


def then_create(subject: Subject) -> None:
    """A name can be used again after the volume with this name was deleted."""
    name = subject.name()
    first = subject.create(name)
    _must_work(subject, first.volume_id, "DeleteVolume")
    try:
        subject.create(name)
    except CsiError as error:
        raise Broken(f"the name of a deleted volume could not be used again: {error}") from None


def _must_work(subject: Subject, volume_id: str, what: str) -> None:
    try:
        subject.delete(volume_id)
    except CsiError as error:
        raise Broken(f"{what} returned {error.code_name} instead of OK") from None


_STUCK: Final = "A deletion is retried until it succeeds, so the PV would never be deleted"
CHECKS: Final = (
    Check("delete-missing-id", "The field is required by CSI", missing_id),
    Check("delete-unknown", _STUCK, unknown),
    Check("delete-repeat", _STUCK, repeat),
    Check(
        "delete-really",
        "The storage backend would keep space that no object refers to",
        really,
    ),
    Check("delete-then-create", "A retried claim would never get its volume", then_create),
)
