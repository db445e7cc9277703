"""The requests to the driver, and what its answers say; pure (SNS-022, SNS-031, SNS-040)."""

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
    """Parameters of CreateSnapshot (SNA-021, SNA-022).

    Args:
        class_parameters: of the class, unstripped.
        content: the content.
        tells: `--extra-create-metadata`.

    Raises:
        AttemptError: an unknown key with the reserved prefix.
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
    """Parameters of CreateVolumeGroupSnapshot; as `parameters`."""
    kept = snapshot_secrets.strip(class_parameters)
    if tells:
        ref = ("spec", "volumeGroupSnapshotRef")
        kept[snapshot_secrets.KEY_GROUP_NAME] = text(content, *ref, "name")
        kept[snapshot_secrets.KEY_GROUP_NAMESPACE] = text(content, *ref, "namespace")
        kept[snapshot_secrets.KEY_GROUP_CONTENT_NAME] = text(content, "metadata", "name")
    return kept


def created_nanoseconds(snapshot: csi.Snapshot | csi.VolumeGroupSnapshot, now: float) -> int:
    """When it was cut; an absent or zero time is now (SND-005: the reference writes 1970)."""
    stamp = snapshot.creation_time
    found = stamp.seconds * _NANOSECONDS + stamp.nanos
    return found or int(now * _NANOSECONDS)


def listed(entries: Iterable[csi.ListSnapshotsResponse.Entry], handle: str) -> csi.Snapshot | None:
    """The entry of that handle; the reference takes the first one whatever it is (SND-026)."""
    return next((e.snapshot for e in entries if e.snapshot.snapshot_id == handle), None)
