"""Reads and protects the snapshot or claim that a volume is copied from (P-201 to P-226).

The rules are in workers.translate.sources, snapshots and clones; this module reads their inputs
live (D-017, D-021).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers import constants as k
from workers.controllers.provisioner.references import needed_references
from workers.engine.steps import Step
from workers.errors import ApiError, AttemptError, QueueUnavailable, State, TransientError
from workers.kube.errors import ForbiddenError, NotFoundError, RefusedError
from workers.kube.finalizers import with_finalizer, without_finalizer
from workers.kube.retry import update_with_retry
from workers.migration.plugins import in_tree_source
from workers.migration.to_csi import volume_to_csi
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.queue.locks import Mode, snapshot_content
from workers.translate import clones, snapshots, sources
from workers.translate.claims import claim_class_name
from workers.translate.fields import text
from workers.translate.references import KIND_SNAPSHOT, UNBOUND

if TYPE_CHECKING:
    from workers.controllers.provisioner.work import ClaimWork
    from workers.kube.objects import JsonObject
    from workers.translate.sources import ContentSource, DataSource

_log = get_logger(__name__)


def check_grants(work: ClaimWork, source: DataSource) -> None:
    """Requires a ReferenceGrant if the source is in another namespace (P-204, P-205)."""
    if not source.crosses_namespaces:
        return
    try:
        grants = list(work.runtime.kube.list_reference_grants(source.namespace))
    except RefusedError as error:
        raise sources.grants_read_failed(source, error) from error
    sources.check_grants(source, grants)


def resolve(
    work: ClaimWork, claim: JsonObject, source: DataSource, *, protect: bool = True
) -> ContentSource:
    """Reads and checks the source, protects it if `protect` is true, and returns its handle.

    Raises:
        SourceError: NO_CHANGE; the source cannot be used now.
        AttemptError: NO_CHANGE; the source could not be protected.
    """
    read = _snapshot if source.is_snapshot else _claim
    try:
        content = read(work, claim, source, protect=protect)
    except sources.SourceError as error:
        if error.detail:  # users see the recorded text, operators the cause (D-034)
            _log.warning(
                "the claim's data source cannot be used", err=error.message, cause=error.detail
            )
        if isinstance(error.__cause__, RefusedError):
            trail.refused(error.__cause__)
        raise
    if content.warning:
        _log.warning("the data source of the claim has a problem", warning=content.warning)
    return content


def _snapshot(
    work: ClaimWork, claim: JsonObject, source: DataSource, *, protect: bool
) -> ContentSource:
    kube = work.runtime.effects.kube
    try:
        snapshot = kube.get_snapshot(source.namespace, source.name)
    except RefusedError as error:
        raise snapshots.read_failed(source, error) from error
    bound = snapshots.content_name(source, snapshot)
    if protect:
        _hold_content(work, bound)
    try:
        content = kube.get_snapshot_content(bound)
    except RefusedError as error:
        _log.warning("could not read the VolumeSnapshotContent", content=bound, err=error)
        raise snapshots.content_read_failed(source, bound, error) from error
    result = snapshots.content_source(
        source,
        snapshot=snapshot,
        content=content,
        claim=claim,
        class_name=claim_class_name(claim),
        driver_name=work.driver.name,
        prevent_mode_conversion=work.driver.settings.provision.prevent_volume_mode_conversion,
        has_topology=work.driver.settings.gates.volume_snapshot_topology,
    )
    if protect and snapshots.needs_finalizer(snapshot):
        _protect_snapshot(work, source, snapshot)
    return result


def _hold_content(work: ClaimWork, name: str) -> None:
    """Locks a snapshot content so that no csi-fleet snapshotter deletes it during this reconcile.

    Raises:
        TransientError: the snapshot content is being deleted right now.
    """
    lock = snapshot_content(name, Mode.SHARED)
    if work.runtime.queue.acquire(work.lease, lock) is not None:
        raise TransientError(f"snapshot content {name} is being deleted")


def _protect_snapshot(work: ClaimWork, source: DataSource, snapshot: JsonObject) -> None:
    """Adds the source-protection finalizer; continues if the API server forbids that (P-217)."""
    kube = work.runtime.effects.kube
    work.runtime.effects.reach(Step.PROTECT_SOURCE, work.lease)
    try:
        update_with_retry(
            lambda: kube.get_snapshot(source.namespace, source.name),
            lambda found: with_finalizer(found, k.FINALIZER_SNAPSHOT_SOURCE),
            kube.update_snapshot,
            known=snapshot,
        )
    except ForbiddenError as error:
        _log.info(
            "the snapshot is not protected while a volume is restored from it; grant the verb "
            "update on volumesnapshots",
            snapshot=f"{source.namespace}/{source.name}",
            err=error,
        )
    except RefusedError as error:
        raise AttemptError(str(error), State.NO_CHANGE) from error


def unprotect_snapshot(work: ClaimWork, claim: JsonObject) -> None:
    """Removes the snapshot's finalizer once the volume is saved (P-218).

    If this fails, the sweep removes the finalizer. csi-provisioner checks the claim's dataSource
    only; this function uses the normalised source, which covers restores across namespaces (D-017).
    The finalizer is kept while another pending claim is being restored from the snapshot, or while
    an attempt whose claim is gone may still be restoring from it (D-015, D-016).
    """
    gates = work.driver.settings.gates
    try:
        source = sources.normalise(claim, cross_namespace=gates.cross_namespace_volume_data_source)
    except AttemptError:
        return
    if source is None or not source.is_snapshot:
        return
    kube = work.runtime.effects.kube
    try:
        needed = needed_references(
            work.runtime,
            work.driver,
            source.namespace,
            UNBOUND,
            except_uid=text(claim, "metadata", "uid"),
        )
        if (KIND_SNAPSHOT, source.namespace, source.name) in needed:
            return
        work.runtime.effects.reach(Step.UNPROTECT_SOURCE, work.lease)
        update_with_retry(
            lambda: kube.get_snapshot(source.namespace, source.name),
            lambda found: without_finalizer(found, k.FINALIZER_SNAPSHOT_SOURCE),
            kube.update_snapshot,
        )
    except NotFoundError:
        return
    except ForbiddenError as error:
        _log.info(
            "the finalizer remains on the snapshot",
            snapshot=f"{source.namespace}/{source.name}",
            err=error,
        )
    except (ApiError, AttemptError, QueueUnavailable) as error:
        _log.warning(
            "Failed to remove snapshot finalizer",
            snapshot=f"{source.namespace}/{source.name}",
            err=error,
        )


def _claim(
    work: ClaimWork, claim: JsonObject, source: DataSource, *, protect: bool
) -> ContentSource:
    kube = work.runtime.effects.kube
    try:
        source_claim = kube.get_claim(source.namespace, source.name)
    except NotFoundError as error:
        raise clones.not_found(source) from error
    except RefusedError as error:
        raise clones.read_failed(source, error) from error
    name = clones.source_volume_name(source, source_claim, claim)
    try:
        volume = kube.get_volume(name)
    except RefusedError as error:
        raise clones.volume_read_failed(source, error) from error
    if in_tree_source(volume) is not None:
        volume = volume_to_csi(volume)
    result = clones.content_source(
        source,
        source_claim=source_claim,
        source_volume=volume,
        claim=claim,
        driver_name=work.driver.name,
    )
    if protect and clones.needs_finalizer(source_claim):
        _protect_claim(work, source, source_claim)
    return result


def _protect_claim(work: ClaimWork, source: DataSource, source_claim: JsonObject) -> None:
    """Adds the clone-source finalizer (P-226); after a conflict, re-reads and retries (D-021)."""
    kube = work.runtime.effects.kube
    work.runtime.effects.reach(Step.PROTECT_SOURCE, work.lease)
    try:
        update_with_retry(
            lambda: kube.get_claim(source.namespace, source.name),
            lambda found: with_finalizer(found, k.FINALIZER_CLONE_SOURCE),
            kube.update_claim,
            known=source_claim,
        )
    except RefusedError as error:
        raise AttemptError(str(error), State.NO_CHANGE) from error
