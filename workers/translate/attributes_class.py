"""Reads the VolumeAttributesClass that a claim names, and the parameters of the class (P-160)."""

from __future__ import annotations

from workers.errors import AttemptError, State
from workers.translate.fields import Json, text, text_map


def attributes_class_name(claim: Json, *, is_enabled: bool) -> str:
    """Return the name of the class to read; "" if the claim names none or the gate is off.

    Args:
        claim: the claim.
        is_enabled: the feature gate VolumeAttributesClass; if it is off, the field is ignored.
    """
    return text(claim, "spec", "volumeAttributesClassName") if is_enabled else ""


def read_failed(error: object) -> AttemptError:
    """Return the NoChange error for an unreadable class, with the API server's own message."""
    return AttemptError(str(error), State.NO_CHANGE)


def mutable_parameters(attributes_class: Json, driver_name: str) -> dict[str, str]:
    """Return the class's parameters unchanged; no key is reserved here.

    Raises:
        AttemptError: Finished; the class belongs to another driver.
    """
    owner = text(attributes_class, "driverName")
    if owner != driver_name:
        raise AttemptError(
            f"VAC {text(attributes_class, 'metadata', 'name')} referenced in PVC is for driver "
            f"{owner} which does not match driver name {driver_name}",
            State.FINISHED,
        )
    return text_map(attributes_class, "parameters")
