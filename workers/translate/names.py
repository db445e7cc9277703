"""The names of volumes, and the provisioner names that a driver serves."""

from __future__ import annotations

from typing import Final

from workers.errors import AttemptError, State

KEEP_UUID: Final = -1
"""The value of `--volume-name-uuid-length` that keeps the UID with its dashes."""


def known_names(driver_name: str, in_tree_name: str = "") -> frozenset[str]:
    """Return the provisioner names that this driver serves, without empty names (L-026)."""
    return frozenset({driver_name, in_tree_name} - {""})


def volume_name(prefix: str, uuid_length: int, uid: str) -> str:
    """Return the name of the volume, the PV and the CreateVolume request (P-121).

    Args:
        prefix: the value of `--volume-name-prefix`.
        uuid_length: the value of `--volume-name-uuid-length`: -1 to keep the UID verbatim, n to
            keep its first n characters without dashes.
        uid: the UID of the claim.

    Raises:
        AttemptError: Finished; the prefix or UID is empty, or the UID is shorter than the
            length (D-005: csi-provisioner crashes or creates clashing names).
    """
    if not prefix:
        raise AttemptError("volume name prefix cannot be of length 0", State.FINISHED)
    if not uid:
        raise AttemptError("corrupted PVC object, it is missing UID", State.FINISHED)
    if uuid_length == KEEP_UUID:
        return f"{prefix}-{uid}"
    digits = uid.replace("-", "")
    if not 1 <= uuid_length <= len(digits):
        raise AttemptError(
            f"volume name UUID length {uuid_length} is not possible for a UID of {len(digits)} "
            "characters, use -1 or 1 to 32",
            State.FINISHED,
        )
    return f"{prefix}-{digits[:uuid_length]}"
