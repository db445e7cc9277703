"""Deletes a snapshot's content, releases its claim and removes its finalizers (section 2.6)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from workers.controllers.snapshot_controller import claims, groupnames, measure
from workers.controllers.snapshot_controller import decide as rules
from workers.engine.live import Gone
from workers.engine.outcome import Outcome, done, retry
from workers.errors import ApiError
from workers.kube.errors import (
    AwayError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    RefusedError,
)
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.translate import references
from workers.translate import snapshot_objects as objects
from workers.translate.fields import annotations_of, object_list, text, text_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.controllers.snapshot_controller.frame import BindingPass, Words
    from workers.controllers.snapshot_controller.work import ObjectPass
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource

_log = get_logger(__name__)


def delete(work: BindingPass) -> Outcome:
    """Deletes the snapshot (SNC-057, SNC-058); its class no longer matters (SND-011)."""
    content = own_content(work)
    if not objects.is_deletion_candidate(work.item):
        return done("nothing to do")
    if content is not None and (pending := restored_of(work, [work.item])) is not None:
        return hold(work, "Snapshot is being used to restore a PVC", pending.refusal)
    group = groupnames.living_group(work)
    if group:
        words = (
            f"deletion of the individual volume snapshot {work.key.object} is not allowed as it "
            f"belongs to group snapshot {work.namespace}/{group}. Deleting the group snapshot will "
            "trigger the deletion of all the individual volume snapshots that are part of the "
            "group."
        )
        work.event("Warning", "SnapshotDeletePending", words)
        return retry("its group exists")
    waits = False
    if content is not None:
        mark_deleted(work, work.words.contents, content, work.words.being_deleted)
        if objects.is_deleted_with_snapshot(content):
            waits = True
            if not delete_content(work, content):
                return retry("content not deleted")
    try:
        claim = objects.source_claim(work.item) or ""
        claims.unprotect(work, claim, except_uid=objects.uid_of(work.item))
    except (AwayError, Gone):
        raise
    except ApiError as error:
        words = "Error check and remove PVC Finalizer for VolumeSnapshot"
        work.event("Warning", "ErrorPVCFinalizer", words)
        trail.tell_refused(_log, error)
        return retry("claim not released")
    return let_go(work, content, waits_for_content=waits)


def own_content(work: BindingPass) -> JsonObject | None:
    """Return the content that refers to this object; None if there is none (SNC-057).

    A snapshot content that the object's status does not name yet is found by its computed name
    (SND-023).
    """
    name = text(work.item, "status", work.words.bound_field)
    if not name and work.named_content is None:
        name = work.computed_content
    content = work.find(work.words.contents, name)
    return content if content is not None and work.refers_back(content) else None


def mark_deleted(
    work: ObjectPass, resource: Resource, content: JsonObject, annotation: str
) -> None:
    """Adds the annotation that allows csi-snapshotter to delete the snapshot (SNQ-011 f)."""

    def patch(item: JsonObject) -> JsonObject | None:
        if annotation in annotations_of(item):
            return None
        return {"metadata": {"annotations": {annotation: "yes"}}}

    with suppress(Gone):
        work.write_to(resource, content, "mark-deleted", patch)


def delete_content(work: BindingPass, content: JsonObject, words: Words | None = None) -> bool:
    """Deletes the content if it still has its UID; returns False if the API server refused.

    Args:
        work: the reconcile.
        content: the content to delete.
        words: the names for the content's kind; by default those of the reconcile.
    """
    words = words or work.words
    if text(content, "metadata", "deletionTimestamp"):
        return True
    work.reach("delete-content")
    name = objects.name_of(content)
    try:
        work.context.effects.kube.delete(words.contents, name, uid=objects.uid_of(content))
    except RefusedError as error:
        if was_gone(error, name):
            return True
        message = f"Failed to delete {words.noun} content API object"
        work.event("Warning", f"{words.subject}ContentObjectDeleteError", message)
        trail.tell_refused(_log, error)
        return False
    return True


def hold(work: ObjectPass, words: str, refusal: RefusedError | None) -> Outcome:
    """Delays the deletion while a restore from the snapshot may be in progress."""
    work.event("Warning", "SnapshotDeletePending", words)
    if refusal is not None:
        trail.tell_refused(_log, refusal)
    return retry("is being restored")


def was_gone(error: RefusedError, name: str) -> bool:
    """True if a DELETE was refused because that object no longer exists."""
    if isinstance(error, NotFoundError):
        return error.is_about(name)
    return isinstance(error, ConflictError)


def let_go(work: ObjectPass, content: JsonObject | None, *, waits_for_content: bool) -> Outcome:
    """Removes the finalizers; removes the bound finalizer only once the content is gone.

    The rule is SNC-058 row 7.
    """

    def patch(item: JsonObject) -> JsonObject | None:
        known = text_list(item, "metadata", "finalizers")
        kept = rules.left_finalizers(item, waits_for_content=waits_for_content, leaves_group=True)
        return None if kept == known else {"metadata": {"finalizers": kept}}

    try:
        work.write("remove-finalizers", patch)
    except Gone:
        return done("gone")
    if not waits_for_content:
        measure.ended(work, measure.DELETE, content)
    return done("waits for its content" if waits_for_content else "released")


class Pending(NamedTuple):
    """A snapshot from which a restore is or may be in progress.

    Attributes:
        name: the snapshot's name.
        refusal: why it is unknown whether a restore is in progress; None if it is known.
    """

    name: str
    refusal: RefusedError | None = None


def restored_of(work: ObjectPass, snapshots: list[JsonObject]) -> Pending | None:
    """Return the first snapshot from which a volume is being restored (SNC-058 row 2, SND-010).

    Claims of other namespaces need a ReferenceGrant, so only the namespaces in the grants are
    searched. If claims cannot be read, the first snapshot counts as in use. If a claim is gone, the
    provisioner's finalizer is kept on the snapshot until the claim's attempt ends.

    Args:
        work: the reconcile.
        snapshots: the snapshots to check, from the reconcile's namespace.
    """
    names = [objects.name_of(one) for one in snapshots]
    for name, one in zip(names, snapshots, strict=True):
        if references.is_being_restored(one):
            return Pending(name)
    if not names:
        return None
    try:
        restored = references.references_of(
            (
                claim
                for namespace in (work.namespace, *_granted_namespaces(work, names))
                for claim in work.context.kube.list_claims(namespace)
            ),
            references.UNBOUND,
        )
    except RefusedError as error:
        return Pending(names[0], error)
    kind = references.KIND_SNAPSHOT
    found = (Pending(name) for name in names if (kind, work.namespace, name) in restored)
    return next(found, None)


def _granted_namespaces(work: ObjectPass, names: list[str]) -> Iterator[str]:
    """Yields the namespaces that may use these snapshots; none if the grants are unreadable."""
    try:
        grants = list(work.context.kube.list_reference_grants(work.namespace))
    except (NotFoundError, ForbiddenError):
        return
    for grant in grants:
        targets = object_list(grant, "spec", "to")
        if not any(
            text(to, "kind") == references.KIND_SNAPSHOT and text(to, "name") in {"", *names}
            for to in targets
        ):
            continue
        for source in object_list(grant, "spec", "from"):
            if text(source, "kind") == "PersistentVolumeClaim":
                yield text(source, "namespace")
