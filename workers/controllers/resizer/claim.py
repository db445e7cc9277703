"""Reads sizes and classes from a live claim and its volume.

Each view reads an object once. Sizes are compared by value, but kept as they were written (R-030).
Nothing in this module changes an object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.controllers.resizer.words import ANN_PRE_RESIZE, ANN_RESIZER, Condition
from workers.translate.fields import annotations_of, is_deleting, object_list, text, value_at
from workers.translate.quantity import parse

if TYPE_CHECKING:
    from workers.translate.fields import Json

BOUND: Final = "Bound"
_STORAGE: Final = "storage"


@dataclass(frozen=True, slots=True)
class Size:
    """A quantity: its value in bytes, and its string as written in the object."""

    size_bytes: int
    text: str


def size_at(obj: Json, *path: str) -> Size | None:
    """Return the quantity at `path`, or None if it is absent.

    Raises:
        QuantityError: the quantity is malformed.
    """
    found = value_at(obj, *path)
    return None if found is None else Size(parse(found), str(found))


@dataclass(frozen=True, slots=True)
class ClaimView:
    """A PersistentVolumeClaim as the state machine sees it.

    Attributes:
        wanted: `spec.resources.requests.storage`.
        actual: `status.capacity.storage`.
        allocated: `status.allocatedResources.storage`; None if it is absent.
        part: `status.allocatedResourceStatuses.storage`; "" if it is absent.
        conditions: the types of the conditions that are True.
        wanted_class: `spec.volumeAttributesClassName`; an unset name and an empty one are the same.
        current_class: `status.currentVolumeAttributesClassName`.
        modify_state: `status.modifyVolumeStatus.status`; None if `modifyVolumeStatus` is absent.
        modify_target: `status.modifyVolumeStatus.targetVolumeAttributesClassName`.
    """

    namespace: str
    name: str
    uid: str
    volume_name: str
    phase: str
    is_deleting: bool
    resizer: str
    wanted: Size
    actual: Size
    allocated: Size | None
    part: str
    conditions: frozenset[str]
    wanted_class: str
    current_class: str
    modify_state: str | None
    modify_target: str
    storage_class: str

    @property
    def path(self) -> str:
        """The claim's `<namespace>/<name>`."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_bound(self) -> bool:
        """True if the claim's phase is Bound."""
        return self.phase == BOUND


_NOTHING: Final = Size(0, "0")


def read_claim(claim: Json) -> ClaimView:
    """Read a live claim.

    Raises:
        AttemptError: a field's type or form is one that the API does not allow.
    """
    modify = value_at(claim, "status", "modifyVolumeStatus")
    return ClaimView(
        namespace=text(claim, "metadata", "namespace"),
        name=text(claim, "metadata", "name"),
        uid=text(claim, "metadata", "uid"),
        volume_name=text(claim, "spec", "volumeName"),
        phase=text(claim, "status", "phase"),
        is_deleting=is_deleting(claim),
        resizer=annotations_of(claim).get(ANN_RESIZER, ""),
        wanted=size_at(claim, "spec", "resources", "requests", _STORAGE) or _NOTHING,
        actual=size_at(claim, "status", "capacity", _STORAGE) or _NOTHING,
        allocated=size_at(claim, "status", "allocatedResources", _STORAGE),
        part=text(claim, "status", "allocatedResourceStatuses", _STORAGE),
        conditions=frozenset(
            text(one, "type")
            for one in object_list(claim, "status", "conditions")
            if text(one, "status") == "True"
        ),
        wanted_class=text(claim, "spec", "volumeAttributesClassName"),
        current_class=text(claim, "status", "currentVolumeAttributesClassName"),
        modify_state=None
        if modify is None
        else text(claim, "status", "modifyVolumeStatus", "status"),
        modify_target=text(
            claim, "status", "modifyVolumeStatus", "targetVolumeAttributesClassName"
        ),
        storage_class=text(claim, "spec", "storageClassName"),
    )


def condition_of(claim: Json, kind: Condition) -> Json | None:
    """Return the condition of type `kind`, whatever its status; None if there is none."""
    return next(
        (one for one in object_list(claim, "status", "conditions") if one.get("type") == kind), None
    )


@dataclass(frozen=True, slots=True)
class VolumeView:
    """A PersistentVolume as the state machine sees it.

    Attributes:
        csi_driver: `spec.csi.driver`; "" if there is no CSI source.
        has_csi: whether the PV has a CSI source.
        pre_resize: the value of the pre-resize annotation; None if it is absent.
    """

    name: str
    uid: str
    capacity: Size
    csi_driver: str
    has_csi: bool
    claim_namespace: str
    claim_uid: str
    is_deleting: bool
    pre_resize: str | None
    class_name: str


def read_volume(volume: Json) -> VolumeView:
    """Read a live volume.

    Raises:
        AttemptError: a field's type or form is one that the API does not allow.
    """
    return VolumeView(
        name=text(volume, "metadata", "name"),
        uid=text(volume, "metadata", "uid"),
        capacity=size_at(volume, "spec", "capacity", _STORAGE) or _NOTHING,
        csi_driver=text(volume, "spec", "csi", "driver"),
        has_csi=value_at(volume, "spec", "csi") is not None,
        claim_namespace=text(volume, "spec", "claimRef", "namespace"),
        claim_uid=text(volume, "spec", "claimRef", "uid"),
        is_deleting=is_deleting(volume),
        pre_resize=annotations_of(volume).get(ANN_PRE_RESIZE),
        class_name=text(volume, "spec", "volumeAttributesClassName"),
    )
