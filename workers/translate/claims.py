"""Reads a claim's fields and decides whether this driver should provision the claim now.

Nothing here reads from the cluster; the class is passed in, or None if it does not exist.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from workers.constants import (
    ANN_MIGRATED_TO,
    ANN_SELECTED_NODE,
    ANN_SELECTED_NODE_ALPHA,
    ANN_STORAGE_CLASS_BETA,
    ANN_STORAGE_PROVISIONER,
    ANN_STORAGE_PROVISIONER_BETA,
)
from workers.errors import AttemptError, IgnoredError, State
from workers.translate import quantity
from workers.translate.fields import (
    FieldError,
    Json,
    annotations_of,
    describe,
    optional_text,
    text,
    text_list,
    value_at,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

BLOCK: Final = "Block"
FILESYSTEM: Final = "Filesystem"
WAIT_FOR_FIRST_CONSUMER: Final = "WaitForFirstConsumer"


class Decision(Enum):
    """The result of the pre-check."""

    PROVISION = "provision"
    ALREADY_BOUND = "already-bound"
    NOT_OURS = "not-ours"
    CLASS_MISSING = "class-missing"
    """The claim is retried with back-off and counted as a failure, without an event (L-022 row 5).
    """
    WAITS_FOR_NODE = "waits-for-node"


def provisioner_of(annotations: Mapping[str, str]) -> str | None:
    """Return the provisioner that annotations name; the GA key takes precedence even when empty."""
    return annotations.get(ANN_STORAGE_PROVISIONER, annotations.get(ANN_STORAGE_PROVISIONER_BETA))


def class_of(annotations: Mapping[str, str]) -> str | None:
    """Return the class that the beta annotation names; it overrides the spec (L-023)."""
    return annotations.get(ANN_STORAGE_CLASS_BETA)


def claim_class_name(obj: Json) -> str:
    """Return the class of a claim or volume: the beta annotation if present, else the spec (L-023).

    Return "" for a claim with neither (D-012: csi-provisioner crashes on such a claim in node
    mode).
    """
    named = class_of(annotations_of(obj))
    return text(obj, "spec", "storageClassName") if named is None else named


def provisioner_annotation(claim: Json) -> str | None:
    """Return the claim's provisioner; the GA key takes precedence, even if empty (P-100)."""
    return provisioner_of(annotations_of(claim))


def qualifies(claim: Json, driver_name: str) -> bool:
    """Return True if the annotations name this driver or its in-tree plugin (P-100, L-025)."""
    if provisioner_annotation(claim) == driver_name:
        return True
    return annotations_of(claim).get(ANN_MIGRATED_TO) == driver_name


def check_qualifies(claim: Json, driver_name: str) -> None:
    """Check the annotations again at the start of an attempt (P-102).

    Raises:
        IgnoredError: the claim names a different provisioner.
    """
    if not qualifies(claim, driver_name):
        raise IgnoredError(
            f"PVC annotated with external-provisioner name {provisioner_annotation(claim) or ''} "
            f"does not match provisioner driver name {driver_name}. "
            "This could mean the PVC is not migrated",
        )


def should_provision(
    claim: Json,
    storage_class: Json | None,
    *,
    known_names: Collection[str],
    is_qualified: bool = True,
) -> Decision:
    """Decide whether an attempt is due, by the first matching row of L-022.

    Args:
        claim: the claim as it was last read.
        storage_class: the class named by `claim_class_name(claim)`; None if it does not exist.
        known_names: the driver name and the in-tree name (`names.known_names`).
        is_qualified: whether `qualifies` and, in node mode, also the node gate returned True.
    """
    if text(claim, "spec", "volumeName"):
        return Decision.ALREADY_BOUND
    if not is_qualified or (provisioner_annotation(claim) or "") not in known_names:
        return Decision.NOT_OURS
    if storage_class is None:
        return Decision.CLASS_MISSING
    waits = text(storage_class, "volumeBindingMode") == WAIT_FOR_FIRST_CONSUMER
    if waits and not annotations_of(claim).get(ANN_SELECTED_NODE):
        return Decision.WAITS_FOR_NODE
    return Decision.PROVISION


def is_known_class(storage_class: Json, known_names: Collection[str]) -> bool:
    """Return True if the class is ours; if not, the attempt stops silently (L-040 step 5)."""
    return text(storage_class, "provisioner") in known_names


def check_selector(claim: Json) -> None:
    """Refuse a claim that selects existing volumes.

    Raises:
        AttemptError: Finished; `spec.selector` is set, even to `{}` (P-101 step 11).
    """
    if value_at(claim, "spec", "selector") is not None:
        raise AttemptError("claim Selector is not supported", State.FINISHED)


def selected_node(claim: Json) -> str:
    """Return the node that the scheduler chose, or "" if it chose none (P-301, L-040 step 6).

    The current annotation takes precedence over the alpha annotation; the binding mode does not
    matter (L-043).
    """
    found = annotations_of(claim)
    return found.get(ANN_SELECTED_NODE, found.get(ANN_SELECTED_NODE_ALPHA, ""))


def requested_bytes(claim: Json) -> int:
    """Return the storage request in bytes, rounded up; 0 if there is none (P-138).

    Raises:
        AttemptError: NoChange; the request is malformed or negative, or does not fit in 63 bits.
    """
    request = value_at(claim, "spec", "resources", "requests", "storage")
    if request is None:
        return 0
    try:
        size_bytes = quantity.parse(request)
    except quantity.QuantityError as error:
        raise FieldError(f"{describe(claim)}: storage request: {error.message}") from error
    if size_bytes < 0:
        raise FieldError(f"{describe(claim)}: storage request {request} is negative")
    return size_bytes


def has_storage_request(claim: Json) -> bool:
    """Return True if the claim requests a size (P-210 row 9)."""
    return value_at(claim, "spec", "resources", "requests", "storage") is not None


def access_modes(claim: Json) -> list[str]:
    """Return the access modes in the claim's order."""
    return text_list(claim, "spec", "accessModes")


def volume_mode(claim: Json) -> str | None:
    """Return `Block` or `Filesystem`, or None if the claim does not specify the mode."""
    return optional_text(claim, "spec", "volumeMode")


def is_block(claim: Json) -> bool:
    """Return True if the claim requests a raw block device."""
    return volume_mode(claim) == BLOCK


def claim_reference(claim: Json) -> dict[str, Any]:
    """Return the reference that ties the volume to the claim (P-190, L-040 step 2).

    Raises:
        AttemptError: NoChange; the claim's namespace, name or UID is missing, so another claim
            could get the volume.
    """
    reference = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": text(claim, "metadata", "namespace"),
        "name": text(claim, "metadata", "name"),
        "uid": text(claim, "metadata", "uid"),
    }
    missing = [key for key, value in reference.items() if not value]
    if missing:
        raise FieldError(f"{describe(claim)}: metadata lacks {', '.join(missing)}")
    resource_version = text(claim, "metadata", "resourceVersion")
    return reference | ({"resourceVersion": resource_version} if resource_version else {})
