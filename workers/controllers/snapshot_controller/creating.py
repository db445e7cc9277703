"""Creates a dynamic snapshot's content from its claim, volume and class (SNC-042 to SNC-044)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.controllers.snapshot_controller import claims, contents, nodes
from workers.controllers.snapshot_controller import decide as rules
from workers.controllers.snapshot_controller.decide import Refusal
from workers.errors import AttemptError, State
from workers.kube import paths
from workers.kube.errors import AlreadyExistsError, NotFoundError, RefusedError
from workers.migration.plugins import in_tree_source
from workers.migration.to_csi import volume_to_csi
from workers.queue.locks import Lock, Mode
from workers.translate import snapshot_objects as objects
from workers.translate.fields import Json, text, value_at
from workers.translate.go_text import quote

if TYPE_CHECKING:
    from workers.controllers.snapshot_controller.frame import BindingPass
    from workers.controllers.snapshot_controller.work import ObjectPass
    from workers.kube.objects import JsonObject
    from workers.translate.secrets import SecretRef


def _fail(message: str) -> AttemptError:
    return AttemptError(message, State.NO_CHANGE)


def source_volume(work: ObjectPass, claim_name: str | None) -> JsonObject:
    """Return the volume of a claim in CSI form (SNC-043 rows 3 to 5, SND-031).

    Raises:
        AttemptError: the claim is missing or not bound, or the volume names another claim.
    """
    if claim_name is None:
        raise _fail("the snapshot source PVC name is not specified")
    if not claim_name:
        raise _fail(f"the PVC name is not specified in snapshot {work.key.object}")
    claim = work.find(paths.CLAIMS, claim_name, work.namespace)
    if claim is None:
        missing = objects.not_listed("persistentvolumeclaim", claim_name)
        raise _fail(f"failed to retrieve PVC {claim_name} from the lister: {quote(missing)}")
    return _volume_of(work, claim)


def _volume_of(work: ObjectPass, claim: Json) -> JsonObject:
    volume = bound_volume(work, claim, "a snapshot")
    return volume_to_csi(volume) if in_tree_source(volume) is not None else volume


def bound_volume(work: ObjectPass, claim: Json, wanted: str) -> JsonObject:
    """Return the volume of a claim.

    Args:
        work: the current reconcile.
        claim: the claim.
        wanted: what is being created, for the error message; "a snapshot", for example.

    Raises:
        AttemptError: the claim is not bound, or the volume names another claim.
    """
    if text(claim, "status", "phase") != "Bound":
        raise _fail(
            f"the PVC {objects.name_of(claim)} is not yet bound to a PV, will not attempt to take "
            f"{wanted}"
        )
    name = text(claim, "spec", "volumeName")
    try:
        volume = work.context.kube.get_volume(name)
    except NotFoundError as error:
        cause = quote(str(error))
        raise _fail(f"failed to retrieve PV {name} from the API server: {cause}") from error
    if not rules.is_bound_volume(volume, claim):
        raise _fail("claim in dataSource not bound or invalid")
    return volume


def source_driver(work: ObjectPass) -> str:
    """Return the driver of the snapshot's source volume (SNC-011).

    Raises:
        AttemptError: the driver cannot be determined.
    """
    volume = source_volume(work, objects.source_claim(work.item))
    if value_at(volume, "spec", "csi") is None:
        raise _fail(f"snapshotting non-CSI volumes is not supported, snapshot:{work.key.object}")
    return text(volume, "spec", "csi", "driver")


def create_content(work: BindingPass) -> JsonObject:
    """Checks all inputs, protects the claim, then creates the snapshot content (SNC-043).

    Raises:
        Refusal: `SnapshotContentCreationFailed`; the reconcile is retried with back-off.
        Ended: another key holds the lock on the claim or on its volume.
    """
    try:
        return _create(work, claims.hold(work), work.chosen_class)
    except AttemptError as error:
        words = f"Failed to create snapshot content with error {error.message}"
        raise Refusal("SnapshotContentCreationFailed", words) from error


def _create(work: BindingPass, claim: Json, snapshot_class: JsonObject | None) -> JsonObject:
    key = work.key.object
    try:
        volume, secret = _input(work, claim, snapshot_class)
    except AttemptError as error:
        name = objects.name_of(work.item)
        raise _fail(
            f"failed to get input parameters to create snapshot {name}: {quote(error.message)}"
        ) from error
    if value_at(volume, "spec", "csi") is None:
        name = objects.name_of(volume)
        raise _fail(f"cannot find CSI PersistentVolumeSource for volume {name}")
    assert snapshot_class is not None  # `_input` fails without one
    contents.check_driver(snapshot_class, volume)
    # The provisioner takes the same lock exclusively when it deletes the volume.
    work.acquire(Lock(objects.name_of(volume), Mode.SHARED))
    body = contents.build(
        work.item,
        snapshot_class,
        volume,
        secret=secret,
        node=nodes.managing_node(work, volume) if work.settings.is_distributed else "",
        keeps_mode=work.settings.keeps_volume_mode,
    )
    claims.protect(work, claim)
    content = _post(work, body)
    claims.let_go(work)
    words = f"Waiting for a snapshot {key} to be created by the CSI driver."
    work.event("Normal", "CreatingSnapshot", words)
    return content


def _input(
    work: ObjectPass, claim: Json, snapshot_class: JsonObject | None
) -> tuple[JsonObject, SecretRef | None]:
    """Return the volume and a reference to the secret (SNC-043 rows 2 to 6)."""
    if snapshot_class is None:
        name = objects.name_of(work.item)
        raise _fail(f"failed to take snapshot {name} without a snapshot class")
    return _volume_of(work, claim), contents.secret_of(work.item, snapshot_class)


def _post(work: BindingPass, body: JsonObject) -> JsonObject:
    """Creates the snapshot content; an existing content must belong to the snapshot (SND-009)."""
    work.reach("create-content")
    try:
        return work.context.effects.kube.create(paths.SNAPSHOT_CONTENTS, body)
    except AlreadyExistsError:
        found = work.find_content(body["metadata"]["name"])
        if found is None:
            raise _fail("the content was deleted while it was being checked") from None
        work.check_content(found)
        return found
    except RefusedError as error:
        key = work.key.object
        words = f"Error creating volume snapshot content object for snapshot {key}: {error}."
        work.event("Warning", "CreateSnapshotContentFailed", words)
        raise claims.update_failed(key, error) from error
