"""Reconciles one group snapshot content: creates, queries and deletes the group as a whole.

The protocol (SNG-002) is that of single snapshot contents with other names; this module holds the
differences.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.controllers.snapshotter import orphans, request
from workers.controllers.snapshotter.content import GROUP_CONTENTS
from workers.controllers.snapshotter.creating import CREATES, Creation
from workers.controllers.snapshotter.decide import ENDS, Action
from workers.controllers.snapshotter.deleting import deleted, refused, release, secrets_for_deletion
from workers.controllers.snapshotter.intent import SLOW_AFTER_SECONDS, Intent
from workers.controllers.snapshotter.work import (
    ContentPass,
    held_back,
    poll,
    snapshot_lock,
    tidied,
)
from workers.engine.live import Gone
from workers.engine.outcome import Outcome, done, retry
from workers.errors import ApiError, AttemptError, State
from workers.kube.errors import RefusedError
from workers.queue import locks
from workers.translate import snapshot_objects as objects
from workers.translate import snapshot_secrets
from workers.translate.fields import (
    Json,
    has_finalizer,
    is_deleting,
    object_list,
    optional_mapping,
    optional_text,
    text,
    text_list,
    text_map,
)
from workers.translate.go_text import quote
from workers.translate.snapshot_secrets import SecretUse
from workers.translate.snapshot_status import group_cleared, timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.topology.selectors import Selector

_NANOSECONDS = 1_000_000_000
_CHECK = (
    "GroupSnapshotContentCheckandUpdateFailed",
    "Failed to check and update group snapshot content",
)


def class_name(content: Json) -> str | None:
    """Returns the name of the class that a group snapshot content names."""
    return optional_text(content, "spec", "volumeGroupSnapshotClassName")


def volumes_of(content: Json) -> list[str]:
    """Returns the handles of the source volumes of a dynamic group snapshot content."""
    return text_list(content, "spec", "source", "volumeHandles")


def given_handles(content: Json) -> Json | None:
    """Returns the handles that a pre-provisioned group snapshot content names."""
    return optional_mapping(content, "spec", "source", "groupSnapshotHandles")


def group_handle(content: Json) -> str:
    """Returns the group's handle from the status or, if it is not there, from the source."""
    known = text(content, "status", "volumeGroupSnapshotHandle")
    return known or text(given_handles(content) or {}, "volumeGroupSnapshotHandle")


def members_of(content: Json) -> list[str]:
    """Returns the handles of the members' snapshots."""
    listed = object_list(content, "status", "volumeSnapshotInfoList")
    if listed:
        return [text(one, "snapshotHandle") for one in listed]
    return text_list(given_handles(content) or {}, "volumeSnapshotHandles")


def member_contents(content: Json) -> list[str]:
    """Returns the names that csi-fleet gives to the members' snapshot contents.

    Contents that an administrator created have other names.
    """
    uid = text(content, "spec", "volumeGroupSnapshotRef", "uid")
    return [
        objects.member_content_name(objects.member_digest(uid, text(one, "volumeHandle")))
        for one in object_list(content, "status", "volumeSnapshotInfoList")
    ]


def is_ours(content: Json, group_class: Json | None, driver_name: str) -> bool:
    """True if the driver serves the content, as for single snapshot contents (SNS-003)."""
    if not volumes_of(content) and given_handles(content) is None:
        return False
    if text(content, "spec", "driver") != driver_name:
        return False
    return group_class is None or text(group_class, "driver") == driver_name


def should_delete(work: ContentPass) -> bool:
    """True if the object's deletion may proceed, as for single snapshot contents (SNS-011)."""
    content = work.item
    if not is_deleting(content):
        return False
    uid = text(content, "spec", "volumeGroupSnapshotRef", "uid")
    if given_handles(content) is not None and not uid:
        return True
    return not work.is_announced() and work.is_wanted_gone()


def decide(work: ContentPass) -> Action:
    """Returns the action of the first row of SNS-010 that matches the group."""
    content = work.item
    handle = text(content, "status", "volumeGroupSnapshotHandle")
    is_open = work.intent is not None and work.intent.is_open and not handle
    has_failed_call = work.intent is not None and work.intent.is_failed
    if should_delete(work) and (has_failed_call or not is_open):
        if has_failed_call and not handle:
            return Action.LAST_CALL
        if work.settings.deletes_unread:
            handle = group_handle(content)
        goes = objects.is_deleted_with_snapshot(content) and handle
        return Action.DELETE if goes else Action.RELEASE
    if objects.is_ready(content):
        return Action.TIDY
    # If a snapshot content has both kinds of source, the group is created first, as for a single
    # snapshot content (row 3).
    is_made = objects.has_status(content) or not volumes_of(content)
    if given_handles(content) is not None and is_made:
        return Action.QUERY
    if not handle:
        if is_deleting(content) and not (is_open or work.is_announced()):
            return Action.WAIT_DELETION
        if not has_finalizer(content, work.names.finalizer):
            return Action.WAIT_FINALIZER
    return Action.REPEAT if objects.has_status(content) else Action.CREATE


def sync_group_content(context: Context, driver: Driver, key: Key, lease: Lease) -> Outcome:
    """Reconciles one VolumeGroupSnapshotContent."""
    work = ContentPass(
        context, key, lease, GROUP_CONTENTS.resource, driver=driver, names=GROUP_CONTENTS
    )
    return work.run(_sync)


def _sync(work: ContentPass) -> Outcome:
    if not work.settings.groups:
        return done("group snapshots are switched off")
    if not work.read():
        return orphans.finish(work, GROUPS)
    group_class = work.read_class(class_name(work.item))
    # The class is ignored for a deletion and for an attempt that has already begun (SND-004).
    judged = None if is_deleting(work.item) or work.has_begun() else group_class
    if not is_ours(work.item, judged, work.driver.name) or not work.is_of_our_node():
        return done("not ours")
    try:
        return _act(work, decide(work), group_class)
    except Gone:
        return orphans.finish(work, GROUPS)


def _act(work: ContentPass, action: Action, group_class: JsonObject | None) -> Outcome:
    if action in ENDS and (held := held_back(work)) is not None:
        return held
    if action is Action.DELETE:
        return _delete(work)
    is_cut = bool(volumes_of(work.item))
    if action is Action.RELEASE:
        return release(work, has_strays=is_cut)
    if action is Action.TIDY:
        return tidied(work, has_strays=is_cut)
    if action is Action.QUERY:
        return _query(work, group_class)
    if action in CREATES:
        return work.settle(GroupCreation(work, action).run(group_class))
    return done(action.value)


def group_status(
    old: Json | None, group: csi.VolumeGroupSnapshot, *, handle: str, now: float
) -> JsonObject | None:
    """Returns the status after a successful call; None if it is unchanged.

    A list of members that the status already has is kept.
    """
    new: JsonObject = dict(old or {})
    if not new.get("volumeGroupSnapshotHandle"):
        new["volumeGroupSnapshotHandle"] = handle
    if new.get("creationTime") is None:
        created = request.created_nanoseconds(group, now)
        new["creationTime"] = timestamp(created // _NANOSECONDS)
    new["readyToUse"] = group.ready_to_use
    new.pop("error", None)
    if not new.get("volumeSnapshotInfoList") and group.snapshots:
        new["volumeSnapshotInfoList"] = [_member(one) for one in group.snapshots]
    return None if new == old else new


def _member(snapshot: csi.Snapshot) -> JsonObject:
    stamp = snapshot.creation_time
    entry: JsonObject = {
        "volumeHandle": snapshot.source_volume_id,
        "snapshotHandle": snapshot.snapshot_id,
        "readyToUse": snapshot.ready_to_use,
    }
    if stamp.seconds or stamp.nanos:
        entry["creationTime"] = stamp.seconds * _NANOSECONDS + stamp.nanos
    if snapshot.size_bytes:
        entry["restoreSize"] = snapshot.size_bytes
    return entry


class GroupCreation(Creation):
    """Calls CreateVolumeGroupSnapshot for one group snapshot content."""

    words: ClassVar[tuple[tuple[str, str], tuple[str, str]]] = (
        ("GroupSnapshotCreationFailed", "Failed to create group snapshot"),
        _CHECK,
    )
    input_words: ClassVar[str] = "create group snapshot for group snapshot content"
    still_announced: ClassVar[str] = (
        "failed to remove VolumeGroupSnapshotBeingCreated annotation on the groupSnapshotContent"
    )

    def handle(self) -> str | None:
        """Returns the group's handle from the status."""
        return optional_text(self.work.item, "status", "volumeGroupSnapshotHandle")

    def handles(self) -> list[str]:
        """The handles of group and members in the status."""
        return [*super().handles(), *members_of(self.work.item)]

    def handles_of(self, answer: Any) -> list[str]:
        """The handles of group and members in an answer."""
        return [answer.group_snapshot_id, *(one.snapshot_id for one in answer.snapshots)]

    def class_name(self) -> str | None:
        """Returns the name of the class that the content names."""
        return class_name(self.work.item)

    def missing_class(self) -> str:
        """Returns the error text for a snapshot content without a class."""
        return f"failed to take group snapshot {self.work.name} without a group snapshot class"

    def source(self) -> Intent:
        """Returns an intent with the group's name and its source volumes.

        Raises:
            AttemptError: the content is not bound.
        """
        uid = text(self.work.item, "spec", "volumeGroupSnapshotRef", "uid")
        if not uid:
            cause = (
                f"cannot create group snapshot. Group snapshot content {self.work.name} not bound "
                "to a group snapshot"
            )
            raise AttemptError(self.taking_failed(cause), State.NO_CHANGE)
        name = self.work.settings.group_name.name(uid)
        return Intent(name, tuple(volumes_of(self.work.item)))

    def taking_failed(self, cause: str) -> str:
        """Returns the error text for an error from the driver."""
        volumes = " ".join(volumes_of(self.work.item))
        return f"failed to take group snapshot of the volumes [{volumes}]: {quote(cause)}"

    def parameters(self, class_parameters: dict[str, str]) -> dict[str, str]:
        """Returns the parameters for the call."""
        tells = self.work.settings.extra_metadata
        return request.group_parameters(class_parameters, self.work.item, tells=tells)

    def allowed(self, snapshot_class: JsonObject) -> Selector:
        """Returns [], because CSI knows no topology of groups."""
        del snapshot_class
        return []

    def call(self, wanted: Intent, secrets: dict[str, str]) -> Any:
        """Calls CreateVolumeGroupSnapshot; copies the intent if the call is slow."""
        work = self.work
        work.reach("create-snapshot")
        return _ask_for_group(
            work,
            wanted,
            secrets,
            on_slow=work.copy_intent,
            slow_after_seconds=SLOW_AFTER_SECONDS,
        )

    def created(self, snapshot: Any) -> Outcome:
        """Writes the group and its members to the status, then ends the attempt."""
        now, handle = time.time(), snapshot.group_snapshot_id
        return self.finish(
            lambda item: group_status(item.get("status"), snapshot, handle=handle, now=now),
            handle,
            [one.snapshot_id for one in snapshot.snapshots],
            is_ready=snapshot.ready_to_use,
        )


def _query(work: ContentPass, group_class: JsonObject | None) -> Outcome:
    """Calls GetVolumeGroupSnapshot for a pre-provisioned group snapshot."""
    handle = group_handle(work.item)
    try:
        secrets = _get_secrets(work, group_class)
        members = _given_members(work)
        lock = snapshot_lock(work, handle)
        work.acquire(lock)
        answer = work.ask(
            "GroupController/GetVolumeGroupSnapshot",
            csi.GetVolumeGroupSnapshotRequest(
                group_snapshot_id=handle,
                snapshot_ids=members,
                secrets=secrets,
            ),
            csi.GetVolumeGroupSnapshotResponse,
        )
    except AttemptError as error:
        work.blame(_CHECK[0], f"{_CHECK[1]}: {error.message}")
        return retry("not known")
    except CsiError as error:
        cause = f"failed to list group snapshot for group snapshot content {work.name}"
        work.blame(_CHECK[0], f"{_CHECK[1]}: {cause}: {quote(str(error))}")
        return retry(error.code_name)
    group, now = answer.group_snapshot, time.time()
    group.ClearField("snapshots")  # like csi-snapshotter: the administrator lists the members
    work.write_status(
        "write-status",
        lambda item: group_status(item.get("status"), group, handle=handle, now=now),
    )
    if not group.ready_to_use:
        return poll(work)
    work.forget()
    return done("ready")


def _given_members(work: ContentPass) -> list[str]:
    members = text_list(given_handles(work.item) or {}, "volumeSnapshotHandles")
    if not members:
        words = f"cannot list group snapshot {work.name}. No snapshots found in the group snapshot"
        raise AttemptError(f"{words} content", State.NO_CHANGE)
    return members


def _get_secrets(work: ContentPass, group_class: JsonObject | None) -> dict[str, str]:
    named = class_name(work.item)
    if named is None:
        return {}
    what, words = f"group snapshot content {work.name}", work.names.class_words
    problem = ""
    if group_class is None:
        missing = objects.not_listed(words, named)
        problem = f"failed to get group snapshot class {named} for {what}: {missing}"
        raise AttemptError(problem, State.NO_CHANGE)
    try:
        ref = snapshot_secrets.resolve(
            SecretUse.GROUP_GET, text_map(group_class, "parameters"), work.name
        )
    except AttemptError as error:
        problem = f"failed to get secret reference for {what}: {error.message}"
        raise AttemptError(problem, State.NO_CHANGE) from error
    try:
        return work.secret(ref)
    except (RefusedError, AttemptError) as error:
        place = f"error getting secret {ref.name} in namespace {ref.namespace}" if ref else ""
        problem = f"failed to get credentials for {what}: {place}: {error}"
        raise AttemptError(problem, State.NO_CHANGE) from error


def _delete(work: ContentPass) -> Outcome:
    """Calls DeleteVolumeGroupSnapshot with all members, then removes the finalizer (SNG-004).

    The locks exclude restores from the members' contents, as for single snapshots.
    """
    reason, handle, members = (
        "GroupSnapshotDeleteError",
        group_handle(work.item),
        members_of(work.item),
    )
    wanted = [locks.snapshot_content(name) for name in member_contents(work.item)]
    wanted.append(snapshot_lock(work, handle))
    work.acquire(*wanted)
    try:
        secrets = secrets_for_deletion(work, reason)
    except (ApiError, AttemptError):
        return retry("no credentials")
    work.reach("delete-snapshot")  # also without members: the driver decides whether that is valid
    try:
        _delete_call(work, handle, members, secrets)
    except CsiError as error:
        return refused(work, error, reason, "Failed to delete group snapshot")
    return deleted(work, group_cleared, reason)


def _ask_for_group(
    work: ContentPass, wanted: Intent, secrets: dict[str, str], **options: Any
) -> Any:
    """Calls CreateVolumeGroupSnapshot with the intent's request; passes `options` to the call."""
    request = csi.CreateVolumeGroupSnapshotRequest(
        name=wanted.name,
        source_volume_ids=wanted.volumes,
        parameters=wanted.parameters or {},
        secrets=secrets,
    )
    method = "GroupController/CreateVolumeGroupSnapshot"
    answer = work.ask(method, request, csi.CreateVolumeGroupSnapshotResponse, **options)
    return answer.group_snapshot


def _create_call(
    work: ContentPass, known: Intent, secrets: dict[str, str]
) -> tuple[str, tuple[str, ...]]:
    group = _ask_for_group(work, known, secrets)
    return group.group_snapshot_id, tuple(one.snapshot_id for one in group.snapshots)


def _delete_call(
    work: ContentPass, handle: str, members: Sequence[str], secrets: dict[str, str]
) -> None:
    request = csi.DeleteVolumeGroupSnapshotRequest(
        group_snapshot_id=handle, snapshot_ids=members, secrets=secrets
    )
    method = "GroupController/DeleteVolumeGroupSnapshot"
    work.ask(method, request, csi.DeleteVolumeGroupSnapshotResponse)


GROUPS = orphans.Calls(_create_call, _delete_call)
GroupCreation.calls = GROUPS
