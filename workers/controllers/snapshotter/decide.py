"""Chooses the action for a snapshot content: the state table (SNS-003, SNS-010, SNS-011).

The functions do no I/O; they receive the live snapshot content and its class.
Source: external-snapshotter v8.6, pkg/sidecar-controller/snapshot_controller.go syncContent,
shouldDelete, isDriverMatch.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from csi_client import errors
from workers.constants import ANN_GROUP_HANDLE, FINALIZER_CONTENT
from workers.translate import snapshot_objects as objects
from workers.translate.fields import (
    Json,
    annotations_of,
    has_finalizer,
    is_deleting,
    text,
    value_at,
)

if TYPE_CHECKING:
    from csi_client.errors import CsiError


class Action(Enum):
    """The action of one reconcile."""

    IGNORE = "not ours"
    DELETE = "delete the snapshot, then let the object go"
    RELEASE = "let the object go"
    LAST_CALL = "ask once more what is there"
    WAIT_FINALIZER = "waits for its finalizer"
    WAIT_DELETION = "deleted by hand, its snapshot lives"
    CREATE = "create"
    TIDY = "ready"
    QUERY = "ask for its state"
    REPEAT = "create again"
    NOTHING = "its group does it"


# After one of these actions the driver is not called again for the content.
ENDS: Final = frozenset({Action.DELETE, Action.RELEASE, Action.LAST_CALL})


def is_ours(content: Json, snapshot_class: Json | None, driver_name: str) -> bool:
    """True if the driver serves the content; a missing class is ignored here (SNS-003)."""
    if objects.volume_handle(content) is None and objects.source_handle(content) is None:
        return False
    if text(content, "spec", "driver") != driver_name:
        return False
    return snapshot_class is None or text(snapshot_class, "driver") == driver_name


def is_group_member(content: Json) -> bool:
    """True for a member of a group: it is not created or deleted on its own (SNG-003)."""
    return ANN_GROUP_HANDLE in annotations_of(content)


def should_delete(content: Json) -> bool:
    """True if the object may be deleted, because no CreateSnapshot is in flight (SNS-011)."""
    if not is_deleting(content):
        return False
    if objects.source_handle(content) is not None and not objects.ref_uid(content):
        return True
    if objects.is_being_created(content):
        return False
    return objects.is_being_deleted(content)


def handle_to_delete(content: Json, *, takes_source_handle: bool) -> str:
    """Return the handle of the snapshot to delete, or "" (SNS-010 rows 1 and 2).

    Args:
        content: a snapshot content that should be deleted.
        takes_source_handle: whether to use the source's handle for a pre-provisioned snapshot
            content whose status never got a handle (SND-021); csi-snapshotter leaves that snapshot
            in the storage system.
    """
    if not objects.is_deleted_with_snapshot(content) or objects.group_handle(content) is not None:
        return ""
    handle = objects.status_handle(content)
    if handle is None and takes_source_handle:
        handle = objects.source_handle(content)
    return handle or ""


def decide(
    content: Json,
    *,
    takes_source_handle: bool = True,
    has_open_call: bool = False,
    has_failed_call: bool = False,
) -> Action:
    """Return the action of the first row of SNS-010 that matches.

    Args:
        content: the content, read live.
        takes_source_handle: see `handle_to_delete`.
        has_open_call: whether the intent says that a CreateSnapshot may be in flight. In that case
            the object is kept even if another program removed its annotation (SND-003).
        has_failed_call: whether a failed CreateSnapshot may have left a snapshot. If
            `has_open_call` is also set, the open call is the last call; it is repeated until its
            outcome is known.
    """
    is_reported = objects.status_handle(content) is not None
    is_open = has_open_call and not is_reported
    if should_delete(content) and (has_failed_call or not is_open):
        if has_failed_call and not is_reported:
            return Action.LAST_CALL
        if is_nameless(content):
            return Action.REPEAT
        found = handle_to_delete(content, takes_source_handle=takes_source_handle)
        return Action.DELETE if found else Action.RELEASE
    is_dynamic = objects.volume_handle(content) is not None
    has_status = objects.has_status(content)
    if is_dynamic and not has_status and not is_group_member(content):
        return _first_create(content, is_open=is_open)
    if objects.is_ready(content) and not is_nameless(content):
        return Action.TIDY
    if objects.source_handle(content) is not None or (
        objects.group_handle(content) is not None and objects.status_handle(content) is not None
    ):
        return Action.QUERY
    if is_group_member(content):
        return Action.NOTHING
    if objects.status_handle(content) is not None:
        return Action.REPEAT
    return _first_create(content, is_open=is_open)


def is_nameless(content: Json) -> bool:
    """True if the snapshot exists but its status has no handle, because the response had no id.

    CreateSnapshot is then repeated with the same name to get the id, even if the object is being
    deleted.
    """
    return (
        objects.volume_handle(content) is not None
        and not is_group_member(content)
        and objects.status_handle(content) is None
        and (objects.is_ready(content) or value_at(content, "status", "creationTime") is not None)
    )


def _first_create(content: Json, *, is_open: bool) -> Action:
    """Decides whether CreateSnapshot may be called for a snapshot content without a snapshot.

    It is not called for an object that is being deleted and has no open call (SND-034). Nor is it
    called before the object has the finalizer, which keeps the object until its snapshot is gone
    (SND-002).
    """
    if is_deleting(content) and not (is_open or objects.is_being_created(content)):
        return Action.WAIT_DELETION
    if not has_finalizer(content, FINALIZER_CONTENT):
        return Action.WAIT_FINALIZER
    return Action.REPEAT if objects.has_status(content) else Action.CREATE


# According to CSI, the driver may still be creating the snapshot after one of these codes
# (SNS-021).
_OPEN_CODES: Final = frozenset(
    {
        errors.CANCELLED,
        errors.DEADLINE_EXCEEDED,
        errors.UNAVAILABLE,
        errors.RESOURCE_EXHAUSTED,
        errors.ABORTED,
    }
)


def is_final(error: CsiError) -> bool:
    """True if the error means that the driver has stopped and created nothing (SNS-021).

    A broken stream or an unreadable response is never final, whatever its code.
    """
    if error.code is None or error.code in _OPEN_CODES:
        return False
    return error.is_final or not error.from_transport


def may_have_made(error: CsiError) -> bool:
    """True for final codes that drivers also return after a timeout of their own."""
    return error.code in {errors.INTERNAL, errors.UNKNOWN}


def made_nothing(error: CsiError) -> bool:
    """True if the call failed because the pool was full, so that it created nothing (SND-032).

    SNS-021 does not treat this error as final.
    """
    return error.code == errors.RESOURCE_EXHAUSTED and not error.from_transport


POLL_START_SECONDS: Final = 1.0
POLL_MAX_SECONDS: Final = 30.0


def poll_seconds(polls: int) -> float:
    """Return the polling interval (SND-001): first 1 s, then 1.5 times the last, at most 30 s."""
    return min(POLL_START_SECONDS * 1.5 ** min(polls, 40), POLL_MAX_SECONDS)
