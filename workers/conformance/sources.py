"""Checks for clones, snapshots and topology, where the response must match the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.conformance.report import Broken, Check, Skipped

if TYPE_CHECKING:
    from workers.conformance.subject import Subject

_Source = csi.VolumeContentSource


def _of_volume(volume_id: str) -> csi.VolumeContentSource:
    return _Source(volume=_Source.VolumeSource(volume_id=volume_id))


def _of_snapshot(snapshot_id: str) -> csi.VolumeContentSource:
    return _Source(snapshot=_Source.SnapshotSource(snapshot_id=snapshot_id))


def clone(subject: Subject) -> None:
    """A clone is created, and the response names the source volume."""
    subject.need("CLONE_VOLUME")
    source = _of_volume(subject.create(subject.name()).volume_id)
    _check_echo(subject.create(subject.name(), volume_content_source=source), source)


def clone_of_unknown(subject: Subject) -> None:
    """A clone of an unknown volume is refused."""
    subject.need("CLONE_VOLUME")
    source = _of_volume(subject.name())
    subject.refused(
        "a clone of a volume that does not exist",
        lambda: subject.create(subject.name(), volume_content_source=source),
        errors.NOT_FOUND,
    )


def restore(subject: Subject) -> None:
    """A volume is created from a snapshot, and the response names the snapshot."""
    subject.need("CREATE_DELETE_SNAPSHOT")
    taken = subject.snapshot(subject.name("snapshot"), subject.create(subject.name()).volume_id)
    if not taken.ready_to_use:
        raise Skipped("the snapshot was not ready to use immediately")
    source = _of_snapshot(taken.snapshot_id)
    _check_echo(subject.create(subject.name(), volume_content_source=source), source)


def restore_of_unknown(subject: Subject) -> None:
    """A restore from an unknown snapshot is refused."""
    subject.need("CREATE_DELETE_SNAPSHOT")
    source = _of_snapshot(subject.name("snapshot"))
    subject.refused(
        "a volume from a snapshot that does not exist",
        lambda: subject.create(subject.name(), volume_content_source=source),
        errors.NOT_FOUND,
    )


def snapshot_repeat(subject: Subject) -> None:
    """Requests with the same name and source return one snapshot; another source is refused."""
    subject.need("CREATE_DELETE_SNAPSHOT")
    volume, other = subject.create(subject.name()), subject.create(subject.name())
    name = subject.name("snapshot")
    first, second = (subject.snapshot(name, volume.volume_id) for _ in range(2))
    if first.snapshot_id != second.snapshot_id:
        raise Broken("a repeated CreateSnapshot call returned a different id")
    if first.creation_time != second.creation_time:
        raise Broken(
            "a repeated CreateSnapshot call returned a different creation time: the snapshot "
            "was taken again"
        )
    subject.refused(
        "CreateSnapshot with a known name and a different source",
        lambda: subject.snapshot(name, other.volume_id),
        errors.ALREADY_EXISTS,
    )


def snapshot_delete(subject: Subject) -> None:
    """Deleting a snapshot that does not exist succeeds."""
    subject.need("CREATE_DELETE_SNAPSHOT")
    taken = subject.snapshot(subject.name("snapshot"), subject.create(subject.name()).volume_id)
    for what, snapshot_id in (
        ("DeleteSnapshot", taken.snapshot_id),
        ("a repeated DeleteSnapshot call", taken.snapshot_id),
        ("DeleteSnapshot of an id that does not exist", subject.name("snapshot")),
    ):
        try:
            subject.delete_snapshot(snapshot_id)
        except CsiError as error:
            raise Broken(f"{what} returned {error.code_name} instead of OK") from None


def topology(subject: Subject) -> None:
    """The topology in the response contains the requested segments."""
    subject.need("VOLUME_ACCESSIBILITY_CONSTRAINTS")
    try:
        segments = dict(subject.client.node_info().accessible_topology.segments)
    except CsiError as error:
        raise Skipped(
            f"NodeGetInfo: {error.code_name}; run the check where the node service can be reached"
        ) from None
    if not segments:
        raise Broken(
            "NodeGetInfo returns no topology segment, although the driver reports topology support"
        )
    wanted = csi.Topology(segments=segments)
    volume = subject.create(
        subject.name(),
        accessibility_requirements=csi.TopologyRequirement(requisite=[wanted], preferred=[wanted]),
    )
    found = [dict(one.segments) for one in volume.accessible_topology]
    if not found:
        raise Broken(
            "the response has no accessible_topology, although the driver reports topology support"
        )
    if segments not in found:
        raise Broken(f"{segments} was required, but the volume is in {found}")


def _check_echo(volume: csi.Volume, source: csi.VolumeContentSource) -> None:
    if volume.content_source != source:
        raise Broken("the response does not repeat the content source of the request")


_EMPTY: Final = (
    "The provisioner treats such a volume as empty and deletes it, so the claim is never bound"
)
CHECKS: Final = (
    Check("clone-echo", _EMPTY, clone),
    Check(
        "clone-of-unknown", "The user would get an empty volume instead of a copy", clone_of_unknown
    ),
    Check("snapshot-echo", _EMPTY, restore),
    Check("snapshot-of-unknown", "The user would get an empty volume", restore_of_unknown),
    Check("snapshot-repeat", "A retry would change or duplicate a snapshot", snapshot_repeat),
    Check("snapshot-delete", "The snapshot object would never be deleted", snapshot_delete),
    Check(
        "topology-echo", "Pods would be scheduled to nodes that cannot reach the volume", topology
    ),
)
