"""Finds the first reason that a snapshot, a group snapshot or a snapshot content is waiting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from workers import constants as k
from workers.explain import deletion, generic, nouns, queueing, remedies
from workers.explain.facts import NO_REASON, Cause
from workers.explain.moves import move_of
from workers.explain.quietly import quietly
from workers.explain.serving import Served
from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.translate import snapshot_objects as objects
from workers.translate.fields import annotations_of, has_finalizer, is_deleting, text
from workers.translate.references import is_being_restored

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.generic import Explained
    from workers.explain.nouns import Noun
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource
    from workers.translate.fields import Json


@dataclass(frozen=True, slots=True)
class Shape:
    """The differences between snapshots and group snapshots, and between their contents.

    Attributes:
        snapshots: the resource of the snapshots or group snapshots.
        contents: the resource of their contents.
        content_word: the noun for the contents.
        ref_field: the field in a content's spec that names its snapshot.
        bound_field: the field in a snapshot's status that names its content.
        handle_field: the field in a content's status that holds the driver's id.
        being_created: the annotation of a content that is being created.
        being_deleted: the annotation of a content that is being deleted.
        finalizer: the finalizer of a content.
    """

    snapshots: Resource
    contents: Resource
    content_word: str
    ref_field: str
    bound_field: str
    handle_field: str
    being_created: str
    being_deleted: str
    finalizer: str


SNAPSHOT: Final = Shape(
    paths.SNAPSHOTS,
    paths.SNAPSHOT_CONTENTS,
    "content",
    "volumeSnapshotRef",
    "boundVolumeSnapshotContentName",
    "snapshotHandle",
    k.ANN_BEING_CREATED,
    k.ANN_BEING_DELETED,
    k.FINALIZER_CONTENT,
)
GROUP: Final = Shape(
    paths.GROUP_SNAPSHOTS,
    paths.GROUP_SNAPSHOT_CONTENTS,
    "group-content",
    "volumeGroupSnapshotRef",
    "boundVolumeGroupSnapshotContentName",
    "volumeGroupSnapshotHandle",
    k.ANN_GROUP_BEING_CREATED,
    k.ANN_GROUP_BEING_DELETED,
    k.FINALIZER_GROUP_CONTENT,
)
SHAPES: Final = (SNAPSHOT, GROUP)
TOPOLOGY_DROPPED: Final = Cause(
    "topology-dropped",
    "The snapshot is ready to use, but its topology is not stored: the API server dropped the "
    "field nodeAffinity, because the installed CRD of VolumeSnapshotContents does not have it.",
    "Install CRDs that have the field, or switch off the feature gate VolumeSnapshotTopology.",
)
_DELETED_WITH_CONTENT: Final = (
    'kubectl patch {object} --type=merge -p \'{{"spec":{{"deletionPolicy":"Delete"}}}}\''
    "  # only if nobody needs the data"
)
# The finalizers that the snapshot controller removes from a snapshot or a group snapshot.
_OURS: Final = (
    k.FINALIZER_SNAPSHOT_BOUND,
    k.FINALIZER_SNAPSHOT_AS_SOURCE,
    k.FINALIZER_SNAPSHOT_IN_GROUP,
    k.FINALIZER_GROUP_BOUND,
)


def explain_content(tools: Tools, shape: Shape, name: str) -> Explained:
    """Explain a snapshot content from the queue and from its fields.

    Raises:
        ApiError: the API server does not answer, or refuses to show the content.
        QueueUnavailable: Redis does not answer.
    """
    noun = nouns.nouns()[shape.content_word]
    found = generic.explain(tools, noun, namespace="", name=name)
    if found.cause.code in generic.QUEUE_FIRST:
        return found
    try:
        content = tools.kube.get(shape.contents, name)
    except NotFoundError:
        return found
    cause = _kept(tools, shape, content) or content_cause(content, shape)
    if cause.code in NO_REASON | {"failed", "delete-failed"}:
        cause = _unserved(tools, text(content, "spec", "driver")) or cause
    if cause.code == "ready" and _is_topology_dropped(tools, noun, content):
        cause = TOPOLOGY_DROPPED
    made = with_object(found, cause)
    ref = ("spec", shape.ref_field)
    named = made.cause.with_names(
        snapshot_kind=shape.snapshots.kind.lower(),
        snapshot=text(content, *ref, "name"),
        namespace=text(content, *ref, "namespace"),
    )
    return replace(made, cause=remedies.applied(named, made.state))


def _kept(tools: Tools, shape: Shape, content: JsonObject) -> Cause | None:
    """Return a cause if the content remains after the deletion of its snapshot, else None."""
    ref = ("spec", shape.ref_field)
    uid, name, namespace = (text(content, *ref, one) for one in ("uid", "name", "namespace"))
    is_kept = text(content, "spec", "deletionPolicy") == "Retain" and not is_deleting(content)
    if not is_kept or not uid or not _is_gone(tools, shape, name, namespace, uid):
        return None
    return Cause(
        "kept",
        f"{shape.snapshots.kind} {namespace}/{name} was deleted. Its content and the snapshot in "
        "the storage backend are kept, because the content's deletion policy is Retain.",
        "If nobody needs the data, set the content's deletionPolicy to Delete and delete it. To "
        "use the data again, create a content with its handle and a snapshot for it by hand.",
        is_problem=False,
        templates=(
            "kubectl get {object} -o yaml",
            _DELETED_WITH_CONTENT,
            "kubectl delete {object}  # only if nobody needs the data",
        ),
    )


def _is_gone(tools: Tools, shape: Shape, name: str, namespace: str, uid: str) -> bool:
    return quietly(
        lambda: tools.kube.is_gone(shape.snapshots, name, uid, namespace=namespace), default=False
    )


def _is_topology_dropped(tools: Tools, noun: Noun, content: JsonObject) -> bool:
    """True if the content's history has the note that its topology was dropped (SNS-125)."""
    records = tools.registry.alive()
    record = records.get(text(content, "spec", "driver")) or {}
    names = record.get("plugin_capabilities") or ()
    if objects.node_affinity(content) or objects.CAPABILITY_TOPOLOGY not in names:
        return False
    states = generic.known_states(tools, records, noun, content)
    return any(objects.NODE_AFFINITY_DROPPED in note.detail for one in states for note in one.trail)


def with_object(found: Explained, own: Cause) -> Explained:
    """Choose between the queue's cause and the object's own cause, which usually explains more."""
    queued = found.cause
    if own.code in NO_REASON and queued.code != "nothing-to-do":
        return found
    advice = own.advice or (queued.advice if own.is_problem else "")
    return replace(found, cause=replace(own, advice=advice, until=queued.until))


def _unserved(tools: Tools, driver: str) -> Cause | None:
    """Return a cause if no worker runs the snapshotter for this driver, else None."""
    served = Served.by(tools.registry.alive(), "snapshotter")
    if driver in served.names:
        return None
    return queueing.unserved(driver, served, workers=len(tools.presence.workers()))


def snapshot_cause(
    snapshot: Json,
    content: Json | None,
    held: Cause | None,
    group: Json | None = None,
    shape: Shape = SNAPSHOT,
) -> Cause:
    """Explain what a VolumeSnapshot or VolumeGroupSnapshot is waiting for.

    Args:
        snapshot: the snapshot or group snapshot, read live.
        content: the content that it is or will be bound to; None if there is none.
        held: why that content is waiting; None if it is not waiting.
        group: the group snapshot that a member names; None if there is none.
        shape: the differences between a snapshot and a group snapshot.
    """
    error = objects.error_message(snapshot)
    if is_deleting(snapshot):
        return _deletion_cause(snapshot, content, held, group, shape)
    if objects.is_ready(snapshot):
        return ready_cause(snapshot, content, held, shape)
    if content is not None and held is not None and held.code in generic.QUEUE_FIRST:
        return _of_content(content, held)
    if error:
        failed = Cause("failed", f"The snapshot could not be taken: {error}.")
        return _as_of(failed, content, held, shape)
    if content is None or held is None:
        return Cause(
            "no-content",
            "The snapshot controller has not created the snapshot's content object yet.",
        )
    if held.code == "ready":
        name = objects.name_of(content)
        words = f"Content {name} is ready; its status has not been copied to the snapshot yet."
        return Cause("not-copied", words)
    return _of_content(content, held)


def ready_cause(snapshot: Json, content: Json | None, held: Cause | None, shape: Shape) -> Cause:
    """Return the cause for a snapshot whose status says that it is ready."""
    name = text(snapshot, "status", shape.bound_field)
    if content is None and name:
        kind = shape.contents.kind
        return Cause(
            "content-missing",
            f"The snapshot's status says that it is ready, but its {kind} {name} does not exist, "
            "so nothing can be restored from the snapshot.",
            f"Delete the snapshot. If the storage backend still has the data, create a {kind} and "
            "a snapshot for it by hand.",
            names={"content": name, "content_kind": kind.lower()},
        )
    if held is not None and held.code == "deleted-by-hand":
        return held
    return Cause("ready", "The snapshot is ready to use.", is_problem=False)


def _as_of(cause: Cause, content: Json | None, held: Cause | None, shape: Shape) -> Cause:
    """Return the cause with its content's remedy, if there is one."""
    if content is None or held is None or not held.move:
        return cause
    name = objects.name_of(content)
    templates = held.templates or ()
    return replace(
        cause,
        advice=held.advice,
        until=held.until,
        # The driver works on the content, so the content is the object to retry.
        names={
            "driver": text(content, "spec", "driver"),
            **held.names,
            "retry": f"{shape.content_word} {name}",
        },
        move=held.move,
        templates=(*templates, f"csi-fleet explain {shape.content_word} {name}"),
    )


def _of_content(content: Json, held: Cause) -> Cause:
    return replace(
        held,
        text=f"The snapshot is waiting for its content {objects.name_of(content)}: {held.text}",
    )


def _deletion_cause(
    snapshot: Json, content: Json | None, held: Cause | None, group: Json | None, shape: Shape
) -> Cause:
    if is_being_restored(snapshot):
        return Cause(
            "being-restored",
            "A volume is being restored from the snapshot; the snapshot is deleted afterwards.",
            "Check the claims that restore the snapshot.",
        )
    if group is not None and objects.is_member_of(snapshot, group):
        name = objects.name_of(group)
        return Cause(
            "in-group",
            f"The snapshot belongs to the group snapshot {name} and is deleted together with it.",
            "To delete it now, delete the group snapshot.",
            names={"group": name},
        )
    if content is None or held is None or not objects.is_deleted_with_snapshot(content):
        is_ours = any(has_finalizer(snapshot, one) for one in _OURS)
        if not is_ours and (cause := deletion.held(snapshot)):
            return cause
        return Cause("deleting", "The snapshot is being deleted.", is_problem=False)
    if held.code in generic.QUEUE_FIRST:
        return _of_content(content, held)
    name = objects.name_of(content)
    return Cause(
        "waits-for-content",
        f"The content {name} of the snapshot must be deleted first: {held.text}",
        held.advice,
        held.until,
        move=move_of(held),
        templates=(f"csi-fleet explain {shape.content_word} {name}",),
    )


def content_cause(content: Json, shape: Shape = SNAPSHOT) -> Cause:
    """Explain what a snapshot content is waiting for, from its fields."""
    driver, error = text(content, "spec", "driver"), objects.error_message(content)
    annotations = annotations_of(content)
    if is_deleting(content):
        if shape.being_created in annotations:
            return Cause(
                "being-created",
                f"Driver {driver} may still be creating the snapshot; the snapshot is deleted when "
                "that call ends.",
            )
        ref = ("spec", shape.ref_field)
        if shape.being_deleted not in annotations and text(content, *ref, "uid"):
            kind = shape.snapshots.kind
            key = "/".join(text(content, *ref, part) for part in ("namespace", "name"))
            return Cause(
                "deleted-by-hand",
                f"The content was marked for deletion, but its {kind} still exists, so the content "
                "remains.",
                f"To delete the snapshot and its content, delete {kind} {key} too.",
                names={
                    "snapshot_kind": kind.lower(),
                    "snapshot": text(content, *ref, "name"),
                    "namespace": text(content, *ref, "namespace"),
                },
            )
        if not has_finalizer(content, shape.finalizer) and (cause := deletion.held(content)):
            return cause
        if error:
            return Cause(
                "delete-failed", f"Driver {driver} failed to delete the snapshot: {error}."
            )
        return Cause(
            "deleting", f"Driver {driver} is being asked to delete the snapshot.", is_problem=False
        )
    if objects.is_ready(content):
        return Cause("ready", "The snapshot is ready to use.", is_problem=False)
    if error:
        return Cause("failed", f"Driver {driver} failed to create the snapshot: {error}.")
    if not has_finalizer(content, shape.finalizer):
        return Cause(
            "no-finalizer",
            "The snapshot controller has not added its finalizer to the content yet.",
        )
    if text(content, "status", shape.handle_field):
        return Cause(
            "uploading",
            f"Driver {driver} has created the snapshot, but it is not ready to use yet.",
        )
    return Cause("not-made", f"Driver {driver} has not created the snapshot yet.")
