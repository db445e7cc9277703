"""Builds request parameters and reads the driver's responses (SNS-022, SNS-031, SNS-040).

The functions perform no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.translate import snapshot_secrets
from workers.translate.fields import Json, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from csi_client import messages as csi

_NANOSECONDS: Final = 1_000_000_000


def parameters(
    class_parameters: Mapping[str, str], content: Json, *, tells: bool
) -> dict[str, str]:
    """Return the parameters for CreateSnapshot (SNA-021, SNA-022).

    Args:
        class_parameters: the class's parameters, including the reserved keys.
        content: the snapshot content.
        tells: whether to add the names of the snapshot and its content (`--extra-create-metadata`).

    Raises:
        AttemptError: a key has the reserved prefix and is unknown.
    """
    kept = snapshot_secrets.strip(class_parameters)
    if tells:
        ref = ("spec", "volumeSnapshotRef")
        kept[snapshot_secrets.KEY_SNAPSHOT_NAME] = text(content, *ref, "name")
        kept[snapshot_secrets.KEY_SNAPSHOT_NAMESPACE] = text(content, *ref, "namespace")
        kept[snapshot_secrets.KEY_CONTENT_NAME] = text(content, "metadata", "name")
    return kept


def group_parameters(
    class_parameters: Mapping[str, str], content: Json, *, tells: bool
) -> dict[str, str]:
    """Return the parameters for CreateVolumeGroupSnapshot, as `parameters` does for a snapshot."""
    kept = snapshot_secrets.strip(class_parameters)
    if tells:
        ref = ("spec", "volumeGroupSnapshotRef")
        kept[snapshot_secrets.KEY_GROUP_NAME] = text(content, *ref, "name")
        kept[snapshot_secrets.KEY_GROUP_NAMESPACE] = text(content, *ref, "namespace")
        kept[snapshot_secrets.KEY_GROUP_CONTENT_NAME] = text(content, "metadata", "name")
    return kept


def created_nanoseconds(snapshot: csi.Snapshot | csi.VolumeGroupSnapshot, now: float) -> int:
    """Return the creation time, or `now` if there is none (SND-005; upstream would write 1970)."""
    stamp = snapshot.creation_time
    found = stamp.seconds * _NANOSECONDS + stamp.nanos
    return found or int(now * _NANOSECONDS)


def listed(entries: Iterable[csi.ListSnapshotsResponse.Entry], handle: str) -> csi.Snapshot | None:
    """Return the snapshot with that handle (SND-026; csi-snapshotter uses the first entry)."""
    return next((e.snapshot for e in entries if e.snapshot.snapshot_id == handle), None)
