"""Checks a live snapshot and its content: the rules of sections 2 and 3, without I/O.

A failed check raises `Refusal`, which contains everything that the user sees of the failure: the
event, the error message and whether the snapshot is set to not ready. Source: external-snapshotter
v8.6, pkg/common-controller/snapshot_controller.go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.constants import (
    FINALIZER_CONTENT,
    FINALIZER_SNAPSHOT_AS_SOURCE,
    FINALIZER_SNAPSHOT_BOUND,
    FINALIZER_SNAPSHOT_IN_GROUP,
)
from workers.translate import snapshot_objects as objects
from workers.translate.fields import (
    Json,
    has_finalizer,
    is_deleting,
    text,
    text_list,
    value_at,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class Refusal(Exception):  # noqa: N818 - a verdict about an object, not a failure of csi-fleet
    """The snapshot has a problem that its user must see.

    Attributes:
        reason: the reason of the event; "" for no event.
        message: the message of the event and of the error in the status.
        unsets_ready: whether the status is also set to not ready.
        cause: the message for the log and for `SnapshotFinalizerError`, if not `message`.
    """

    def __init__(
        self, reason: str, message: str, *, unsets_ready: bool = True, cause: str = ""
    ) -> None:
        super().__init__(cause or message)
        self.reason = reason
        self.message = message
        self.unsets_ready = unsets_ready
        self.cause = cause or message


def has_one_source(snapshot: Json) -> bool:
    """True if the snapshot names exactly one of a claim and a snapshot content (SNC-020 row 3)."""
    return (objects.source_claim(snapshot) is None) != (objects.source_content(snapshot) is None)


def has_one_handle(content: Json) -> bool:
    """True if the snapshot content names exactly one of a volume and a snapshot (SNC-073 (1))."""
    return (objects.volume_handle(content) is None) != (objects.source_handle(content) is None)


def expected_content(snapshot: Json) -> str:
    """Return the name of the snapshot's content: the name in the spec, else the computed name."""
    named = objects.source_content(snapshot)
    return objects.content_name(snapshot) if named is None else named


def missing_finalizers(snapshot: Json, content: Json | None) -> list[str]:
    """Return the finalizers that a live snapshot needs but does not have (SNC-030)."""
    wanted = [FINALIZER_SNAPSHOT_AS_SOURCE]
    if (
        content is not None
        and objects.bound_content(snapshot)
        and objects.is_deleted_with_snapshot(content)
    ):
        wanted.append(FINALIZER_SNAPSHOT_BOUND)
    return [name for name in wanted if not has_finalizer(snapshot, name)]


def left_finalizers(
    snapshot: Json, *, waits_for_content: bool, leaves_group: bool
) -> Sequence[str]:
    """Return the finalizers to keep on a snapshot that is being deleted (SNC-058 row 7)."""
    gone = {FINALIZER_SNAPSHOT_AS_SOURCE}
    if not waits_for_content:
        gone.add(FINALIZER_SNAPSHOT_BOUND)
    if leaves_group:
        gone.add(FINALIZER_SNAPSHOT_IN_GROUP)
    return [name for name in text_list(snapshot, "metadata", "finalizers") if name not in gone]


def is_settled(snapshot: Json) -> bool:
    """True if the snapshot is ready and bound; no status needs to be copied to it (SNC-056)."""
    return objects.is_ready(snapshot) and bool(objects.bound_content(snapshot))


def needs_content_finalizer(content: Json) -> bool:
    """True if a snapshot content is bound, is not being deleted and has no finalizer.

    This covers steps (2) and (3) of SNC-073.
    """
    return (
        bool(objects.ref_uid(content))
        and not is_deleting(content)
        and not has_finalizer(content, FINALIZER_CONTENT)
    )


def is_bound_volume(volume: Json, claim: Json) -> bool:
    """True if the volume's claimRef names the claim (SNC-043 row 5)."""
    ref = ("spec", "claimRef")
    if value_at(volume, *ref) is None:
        return False
    if text(volume, *ref, "name") != objects.name_of(claim):
        return False
    if text(volume, *ref, "namespace") != objects.namespace_of(claim):
        return False
    uid = text(volume, *ref, "uid")
    return not uid or uid == objects.uid_of(claim)


def uses_claim(snapshot: Json, claim_name: str, *, except_uid: str = "") -> bool:
    """True if a snapshot still needs its source claim (SNC-061)."""
    return (
        objects.source_claim(snapshot) == claim_name
        and not objects.is_ready(snapshot)
        and (not except_uid or objects.uid_of(snapshot) != except_uid)
    )
