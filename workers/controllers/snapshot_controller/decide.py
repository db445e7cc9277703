"""What do a snapshot and its content, read live, ask for? Pure checks of section 2 and 3.

A check that fails raises `Refusal`, which says all that the user sees of it: event, error text and
whether the snapshot counts as not ready. Source: external-snapshotter v8.6, pkg/common-controller/
snapshot_controller.go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.constants import (
    ANN_DEFAULT_SNAPSHOT_CLASS,
    FINALIZER_CONTENT,
    FINALIZER_SNAPSHOT_AS_SOURCE,
    FINALIZER_SNAPSHOT_BOUND,
    FINALIZER_SNAPSHOT_IN_GROUP,
)
from workers.translate import snapshot_objects as objects
from workers.translate.fields import (
    Json,
    annotations_of,
    has_finalizer,
    is_deleting,
    text,
    text_list,
    value_at,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Refusal(Exception):  # noqa: N818 - a verdict about an object, not a failure of ours
    """The snapshot cannot go on as it is.

    Attributes:
        reason: of the event; "" for none.
        message: of the event and the error status.
        unsets_ready: whether the status also says not ready.
        cause: the error's own text where it differs, for the log and for `SnapshotFinalizerError`.
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
    """SNC-020 row 3."""
    return (objects.source_claim(snapshot) is None) != (objects.source_content(snapshot) is None)


def has_one_handle(content: Json) -> bool:
    """SNC-073 (1)."""
    return (objects.volume_handle(content) is None) != (objects.source_handle(content) is None)


def expected_content(snapshot: Json) -> str:
    """The content that belongs to the snapshot: the named one, else the computed one."""
    named = objects.source_content(snapshot)
    return objects.content_name(snapshot) if named is None else named


def check_content(snapshot: Json, content: Json) -> None:
    """Is this content fit for this snapshot? SNC-051, SNC-052.

    Raises:
        Refusal: `SnapshotContentMismatch` or `SnapshotContentMisbound`.
    """
    name, key = objects.name_of(content), objects.full_name(snapshot)
    is_named = objects.source_content(snapshot) is not None
    if is_named and objects.source_handle(content) is None:
        raise Refusal(
            "SnapshotContentMismatch",
            "VolumeSnapshotContent is dynamically provisioned while expecting a pre-provisioned "
            "one",
            cause=f"snapshot {key} expects a pre-provisioned VolumeSnapshotContent {name} but "
            "gets a dynamically provisioned one",
        )
    if not is_named and objects.volume_handle(content) is None:
        raise Refusal(
            "SnapshotContentMismatch",
            f"VolumeSnapshotContent {name} is pre-provisioned while expecting a dynamically "
            "provisioned one",
            cause=f"snapshot {key} expects a dynamically provisioned VolumeSnapshotContent {name} "
            "but gets a pre-provisioned one",
        )
    if not objects.refers_to(content, snapshot, unbound_is_fine=is_named):
        raise Refusal(
            "SnapshotContentMisbound",
            f"VolumeSnapshotContent [{name}] is bound to a different snapshot",
        )


def missing_finalizers(snapshot: Json, content: Json | None) -> list[str]:
    """What a live snapshot still lacks (SNC-030)."""
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
    """What stays on a snapshot under deletion (SNC-058 row 7)."""
    gone = {FINALIZER_SNAPSHOT_AS_SOURCE}
    if not waits_for_content:
        gone.add(FINALIZER_SNAPSHOT_BOUND)
    if leaves_group:
        gone.add(FINALIZER_SNAPSHOT_IN_GROUP)
    return [name for name in text_list(snapshot, "metadata", "finalizers") if name not in gone]


def is_settled(snapshot: Json) -> bool:
    """Ready and bound: nothing is copied from the content any more (SNC-056)."""
    return objects.is_ready(snapshot) and bool(objects.bound_content(snapshot))


def default_class(classes: Iterable[Json], driver: str) -> Json:
    """The default class of a driver (SNC-011).

    Raises:
        Refusal: there is none, or more than one; readyToUse stays as it is.
    """
    found = [
        one
        for one in classes
        if annotations_of(one).get(ANN_DEFAULT_SNAPSHOT_CLASS) == "true"
        and text(one, "driver") == driver
    ]
    if len(found) == 1:
        return found[0]
    problem = (
        f"{len(found)} default snapshot classes were found"
        if found
        else "cannot find default snapshot class"
    )
    raise no_default(problem)


def no_default(cause: object) -> Refusal:
    """The error of a snapshot whose class could not be chosen (SNC-011)."""
    return Refusal(
        "SetDefaultSnapshotClassFailed",
        f"Failed to set default snapshot class with error {cause}",
        unsets_ready=False,
    )


def needs_class(snapshot: Json) -> bool:
    """Neither pre-provisioned snapshots nor members of a group get a default class (SNC-011)."""
    return objects.source_content(snapshot) is None and not objects.is_group_member(snapshot)


def needs_binding(snapshot: Json, content: Json) -> bool:
    """SNC-040 rows 4 and 5; a content that could not be changed is left alone (SND-020)."""
    if not objects.ref_uid(content):
        return True
    wanted = objects.class_name(snapshot)
    return objects.class_name(content) is None and wanted is not None


def needs_content_finalizer(content: Json) -> bool:
    """SNC-073 (2), (3)."""
    return (
        bool(objects.ref_uid(content))
        and not is_deleting(content)
        and not has_finalizer(content, FINALIZER_CONTENT)
    )


def is_bound_volume(volume: Json, claim: Json) -> bool:
    """SNC-043 row 5."""
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
