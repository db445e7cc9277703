"""Decides whether and how to delete a PersistentVolume, and finds its owner and secret.

All objects are passed in. volume_facts decides about owner, finalizer and deletion.
Source: external-provisioner, pkg/controller/controller.go Delete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workers.constants import (
    ANN_DELETION_SECRET_NAME,
    ANN_DELETION_SECRET_NAMESPACE,
)
from workers.errors import AttemptError, IgnoredError, State
from workers.translate import volume_facts
from workers.translate.claims import claim_class_name
from workers.translate.fields import (
    Json,
    annotations_of,
    optional_mapping,
    text,
    text_map,
)
from workers.translate.secrets import SecretKind, SecretRef, resolve
from workers.translate.volume_facts import FinalizerAction, facts_of

if TYPE_CHECKING:
    from collections.abc import Collection

_INVALID: Final = "invalid CSI PV"


@dataclass(frozen=True, slots=True)
class DeletionSecret:
    """What the caller must read before the deletion.

    At most one of `ref` and `class_name` is set. If `ref` is set, read that secret; if it is
    missing, log `secret_read_failed` and delete without secrets (P-511). If `class_name` is set,
    read that class and call `deletion_secret_of_class`; if it is missing, log
    `class_missing_warning` (P-512). If neither is set, delete without secrets. `warning` is a line
    for the log; "" if there is none.
    """

    ref: SecretRef | None = None
    class_name: str = ""
    warning: str = ""


def is_ours(volume: Json, known_names: Collection[str]) -> bool:
    """Return True if this driver owns the volume, even a static volume (L-071, P-500).

    Args:
        volume: the PV.
        known_names: the driver name and the in-tree name (`names.known_names`).
    """
    return any(name in known_names for name in volume_facts.owner_names(facts_of(volume)))


def finalizer_action(volume: Json, *, add_finalizer: bool = True) -> FinalizerAction:
    """Decide what to do with our finalizer on one of our volumes (L-072, P-520)."""
    return volume_facts.finalizer_action(facts_of(volume), add_finalizer=add_finalizer)


def should_delete(
    volume: Json, *, add_finalizer: bool = True, is_guard_willing: bool = True
) -> bool:
    """Return True if the volume has to be deleted from the storage backend.

    This depends on the first matching row of L-073.

    Args:
        volume: the PV, after carrying out `finalizer_action`.
        add_finalizer: the option AddFinalizer (always on for CSI drivers).
        is_guard_willing: the result of a custom provisioner's DeletionGuard.
    """
    if not is_guard_willing:
        return False
    return volume_facts.should_delete(facts_of(volume), add_finalizer=add_finalizer)


def csi_source(volume: Json | None) -> Json:
    """Return the CSI block of a volume; an in-tree volume must be translated (P-501 rows 1, 3)."""
    source = None if volume is None else optional_mapping(volume, "spec", "csi")
    if source is None:
        raise AttemptError(_INVALID, State.NO_CHANGE)
    return source


def volume_handle(volume: Json | None) -> str:
    """Return the `volume_id` for the deletion.

    Raises:
        AttemptError: NoChange; the CSI source is missing, or the handle is empty.
    """
    handle = text(csi_source(volume), "volumeHandle")
    if not handle:
        raise AttemptError(f"{_INVALID}: volumeHandle is empty", State.NO_CHANGE)
    return handle


def not_accessible(problem: str) -> IgnoredError | AttemptError:
    """Return the error for a volume that this node cannot reach (P-506).

    Args:
        problem: why the volume's affinity is unreadable; "" if the volume belongs to another
            node (P-341).
    """
    if problem:
        return AttemptError(f"checking volume affinity failed: {problem}", State.NO_CHANGE)
    return IgnoredError("PV was not provisioned on this node")


def still_attached(volume_name: str, node_name: str) -> AttemptError:
    """Return the error for a volume that is named by a VolumeAttachment (P-510)."""
    return AttemptError(
        f"persistentvolume {volume_name} is still attached to node {node_name}", State.NO_CHANGE
    )


def deletion_secret(volume: Json) -> DeletionSecret:
    """Return where to find the secret for the deletion: annotations, else the class (P-511, P-512).

    The class is used only if at least one of the two annotations is missing.
    """
    found = annotations_of(volume)
    if ANN_DELETION_SECRET_NAME in found and ANN_DELETION_SECRET_NAMESPACE in found:
        name = found[ANN_DELETION_SECRET_NAME]
        namespace = found[ANN_DELETION_SECRET_NAMESPACE]
        if name and namespace:
            return DeletionSecret(ref=SecretRef(name, namespace))
        return DeletionSecret(
            warning=f"deletion secret annotations of volume {text(volume, 'metadata', 'name')} are "
            "incomplete, proceeding to delete without secrets"
            if name or namespace
            else "",
        )
    return DeletionSecret(class_name=claim_class_name(volume))


def deletion_secret_of_class(volume: Json, storage_class: Json) -> DeletionSecret:
    """Resolve the secret for the deletion from the class, for a PV without annotations (P-513).

    Args:
        volume: the PV; its claimRef is used as the claim, so the claim's annotations are unknown.
        storage_class: the class; translated if the volume is migrated.

    Raises:
        AttemptError: NoChange; a template cannot be resolved, so the deletion is blocked (P-514).
    """
    name = text(volume, "metadata", "name")
    if optional_mapping(volume, "spec", "claimRef") is None:
        return DeletionSecret(
            warning=f"volume {name} has no claimRef, proceeding to delete without secrets",
        )
    claim: dict[str, Any] = {
        "metadata": {
            "namespace": text(volume, "spec", "claimRef", "namespace"),
            "name": text(volume, "spec", "claimRef", "name"),
        },
    }
    parameters = text_map(storage_class, "parameters")
    try:
        return DeletionSecret(ref=resolve(SecretKind.PROVISIONER, parameters, name, claim))
    except AttemptError as error:
        raise AttemptError(
            f"failed to get secretreference for volume {name}: {error.message}", State.NO_CHANGE
        ) from error


def class_missing_warning(name: str, error: object) -> str:
    """Return the log line for a class that no longer exists (P-512)."""
    return f"failed to get storageclass: {name}, proceeding to delete without secrets. {error}"


def secret_read_failed(volume: Json, error: object) -> str:
    """Return the log line for a deletion secret that could not be read (P-511)."""
    name = text(volume, "metadata", "name")
    return f"failed to get credentials for volume {name}: {error}"
