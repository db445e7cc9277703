"""Which VolumeAttributesClass does a claim name, and what does the driver get of it? (P-160)."""

from __future__ import annotations

from workers.errors import AttemptError, State
from workers.translate.fields import Json, text, text_map


def attributes_class_name(claim: Json, *, is_enabled: bool) -> str:
    """Return the class to read, "" when the claim names none or the gate is off.

    Args:
        claim: the claim.
        is_enabled: feature gate VolumeAttributesClass; off means the field does not exist for us.
    """
    return text(claim, "spec", "volumeAttributesClassName") if is_enabled else ""


def read_failed(error: object) -> AttemptError:
    """Return the error of a class that could not be read: the API's own text, NoChange."""
    return AttemptError(str(error), State.NO_CHANGE)


def mutable_parameters(attributes_class: Json, driver_name: str) -> dict[str, str]:
    """Return the class's parameters verbatim: no stripping, no reserved keys.

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
