"""Passes chosen labels and annotations of a claim to the driver and to the PV.

An operator chooses the keys with the flags `--claim-labels-to-driver`, `--claim-labels-to-pv` and
`--claim-annotations-to-driver`; nothing else of a claim's metadata is passed. The PV's annotation
`csi-fleet.io/claim-labels` names the labels that csi-fleet has put there, so that nobody else's
label is ever removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.constants import ANN_CLAIM_LABELS, PARAMETER_PREFIX
from workers.errors import AttemptError, State
from workers.translate.fields import Json, annotations_of, describe, text_map

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

LABEL_PARAMETER: Final = f"{PARAMETER_PREFIX}pvc/label/"
ANNOTATION_PARAMETER: Final = f"{PARAMETER_PREFIX}pvc/annotation/"

# CSI limits a map of strings to 4 KiB. A tenant can write 256 KiB of annotations into each claim,
# and the request is also kept in Redis.
MOST_BYTES: Final = 4096


def driver_parameters(
    claim: Json, *, labels: Collection[str], annotations: Collection[str]
) -> dict[str, str]:
    """Return the CreateVolume parameters for the claim's labels and annotations with these keys.

    Raises:
        AttemptError: Finished; the parameters are longer than CSI allows.
    """
    found = {
        LABEL_PARAMETER + key: value
        for key, value in text_map(claim, "metadata", "labels").items()
        if key in labels
    } | {
        ANNOTATION_PARAMETER + key: value
        for key, value in annotations_of(claim).items()
        if key in annotations
    }
    size_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in found.items())
    if size_bytes > MOST_BYTES:
        raise AttemptError(
            f"the labels and annotations of {describe(claim)} that are passed to the driver have "
            f"{size_bytes} bytes, but at most {MOST_BYTES} are allowed. Shorten the values of "
            + ", ".join(key.removeprefix(PARAMETER_PREFIX) for key in found),
            State.FINISHED,
        )
    return found


def chosen(labels: Mapping[str, str] | None, keys: Collection[str]) -> dict[str, str]:
    """Return the labels with one of these keys, sorted by key."""
    return {key: labels[key] for key in sorted(keys) if key in labels} if labels else {}


def put_before(annotation: str | None) -> set[str]:
    """Return the keys of the labels that csi-fleet has put on a PV, read from its annotation."""
    return set(filter(None, (annotation or "").split(",")))


def patch(
    wanted: Mapping[str, str],
    labels: Mapping[str, str] | None,
    annotation: str | None,
    keys: Collection[str],
) -> dict[str, Any]:
    """Return the merge patch of a PV's metadata that makes its labels follow the claim.

    The patch is empty if the labels already agree. A label is removed only if csi-fleet put it
    there. The label of a key that is no longer chosen is left alone, but remains recorded in case
    the key is chosen again.

    Args:
        wanted: the claim's chosen labels.
        labels: the PV's labels; labels with other keys do not matter.
        annotation: the PV's annotation `csi-fleet.io/claim-labels`.
        keys: the chosen keys.
    """
    labels, put = labels or {}, put_before(annotation)
    changes: dict[str, str | None] = {
        key: value for key, value in wanted.items() if labels.get(key) != value
    }
    unwanted = {key for key in put if key in keys and key not in wanted}
    changes |= {key: None for key in sorted(unwanted) if key in labels}
    record = ",".join(sorted((put - unwanted) | wanted.keys())) or None
    found: dict[str, Any] = {"labels": changes} if changes else {}
    if record != (annotation or None):
        found["annotations"] = {ANN_CLAIM_LABELS: record}
    return found


def with_labels(volume: Json, claim: Json, keys: Collection[str]) -> dict[str, Any]:
    """Return a new PV with the claim's chosen labels.

    Raises:
        AttemptError: InBackground, because the volume exists; labels or annotations are malformed.
    """
    if not keys:
        return dict(volume)
    try:
        wanted = chosen(text_map(claim, "metadata", "labels"), keys)
        labels, annotations = text_map(volume, "metadata", "labels"), annotations_of(volume)
    except AttemptError as error:
        raise AttemptError(error.message, State.BACKGROUND) from error
    if wanted:
        labels |= wanted
        annotations[ANN_CLAIM_LABELS] = ",".join(wanted)
    return {
        **volume,
        "metadata": {**volume["metadata"], "labels": labels, "annotations": annotations},
    }
