"""Decides which claims and volumes need a reconcile, and returns their keys.

The functions are pure; the worker that takes a key decides based on the live object. A
filter may return a key that needs no work, but must never miss a key that does.
"""

from __future__ import annotations

from sys import intern
from typing import TYPE_CHECKING, Any

import msgspec

from workers.constants import (
    ANN_MIGRATED_TO,
    ANN_PROVISIONED_BY,
    ANN_SELECTED_NODE,
    FINALIZER_CLONE_SOURCE,
    FINALIZER_VOLUME,
)
from workers.errors import AttemptError, State
from workers.queue.keys import KIND_CLONING, Key, claim_key, volume_key
from workers.translate.claims import WAIT_FOR_FIRST_CONSUMER, class_of, provisioner_of
from workers.translate.fields import optional_mapping, text
from workers.translate.volume_facts import (
    FinalizerAction,
    VolumeFacts,
    facts_of,
    finalizer_action,
    owner_names,
    should_delete,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.controllers.provisioner.served import Drivers, DriverView
    from workers.kube.objects import Claim, DataSource, Volume
    from workers.translate.fields import Json


class ClaimEntry(msgspec.Struct, frozen=True, gc=False):
    """The facts that the watcher keeps about a claim that may need a volume."""

    namespace: str
    name: str
    uid: str
    version: str
    provisioner: str
    migrated_to: str
    class_name: str
    selected_node: str


class VolumeEntry(VolumeFacts, frozen=True, gc=False):
    """The facts that the watcher keeps about a volume that a driver may have to work on."""

    name: str
    uid: str
    version: str
    namespace: str = ""
    affinity: dict[str, Any] | None = None


def claim_entry(claim: Claim) -> ClaimEntry | None:
    """Return the facts of a claim that may need a volume, or None if it needs none.

    A claim with a volumeName or without a provisioner annotation needs no volume (L-022 rows 1 and
    3). The GA annotation takes precedence over the beta annotation, even if the GA annotation names
    a foreign provisioner. A deletion timestamp does not matter (L-024).
    """
    return None if claim.spec.volume_name else _entry_of_claim(claim)


def bound_entry(claim: Claim) -> ClaimEntry | None:
    """Return the facts of a bound claim that names a provisioner, else None."""
    return _entry_of_claim(claim) if claim.spec.volume_name else None


def _entry_of_claim(claim: Claim) -> ClaimEntry | None:
    meta, spec = claim.metadata, claim.spec
    provisioner = provisioner_of(meta.annotations or {})
    if not provisioner:
        return None
    class_name = class_of(meta.annotations or {})
    if class_name is None:
        class_name = spec.storage_class_name or ""
    return ClaimEntry(
        namespace=intern(meta.namespace),
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        provisioner=intern(provisioner),
        migrated_to=intern(meta.annotation(ANN_MIGRATED_TO) or ""),
        class_name=intern(class_name),
        selected_node=intern(meta.annotation(ANN_SELECTED_NODE) or ""),
    )


def claim_driver(entry: ClaimEntry, drivers: Drivers) -> str | None:
    """Return the driver that provisions the claim (L-022 row 4, L-025); None if it is unknown."""
    if entry.provisioner in drivers.by_name:
        return entry.provisioner
    migrated = drivers.first(entry.migrated_to)
    if migrated and entry.provisioner == migrated.in_tree_name:
        return migrated.name
    owner = drivers.first(drivers.owners.get(entry.provisioner, ""))
    if owner and entry.provisioner in owner.additional_names:
        return owner.name
    return None


def claim_keys(
    entry: ClaimEntry, drivers: Drivers, binding_modes: Mapping[str, str | None]
) -> list[Key]:
    """Return the keys of a claim that can be reconciled now; none if the claim has to wait.

    With late binding, the claim waits for its selected node (L-022 rows 6 and 7; the alpha
    annotation does not count). The worker reports and retries a missing class (row 5). In node
    deployment every node gets the key of a claim without a selected node, and the nodes race for
    the claim (ND-003, ND-016).
    """
    name = claim_driver(entry, drivers)
    if name is None:
        return []
    if binding_modes.get(entry.class_name) == WAIT_FOR_FIRST_CONSUMER and not entry.selected_node:
        return []
    return all_claim_keys(entry, name, drivers)


def all_claim_keys(entry: ClaimEntry, name: str, drivers: Drivers) -> list[Key]:
    """Return the claim's keys, whatever the binding mode of its class."""
    views: Iterable[DriverView] = drivers.by_name[name]
    if entry.selected_node:
        views = [view for view in views if view.node in {None, entry.selected_node}]
    return [claim_key(view.queue_name, entry.namespace, entry.name, entry.uid) for view in views]


def volume_entry(volume: Volume, drivers: Drivers) -> VolumeEntry | None:
    """Return the facts of a volume that needs a finalizer change or a deletion, else None.

    The driver's settings decide which volumes these are. A driver that is not registered yet is
    assumed to have the CSI provisioner's settings, so that its volumes are already known when it
    registers.
    """
    entry = _entry(volume)
    if not owner_names(entry):
        return None
    driver = drivers.first(volume_driver(entry, drivers) or "")
    add_finalizer = driver.add_finalizer if driver else True
    if not (
        finalizer_action(entry, add_finalizer=add_finalizer) is not FinalizerAction.KEEP
        or should_delete(entry, add_finalizer=add_finalizer)
    ):
        return None
    if driver and driver.node:
        return msgspec.structs.replace(entry, affinity=volume.spec.node_affinity)
    return entry


def _entry(volume: Volume) -> VolumeEntry:
    meta, spec = volume.metadata, volume.spec
    return VolumeEntry(
        provisioned_by=_interned(meta.annotation(ANN_PROVISIONED_BY)),
        migrated_to=intern(meta.annotation(ANN_MIGRATED_TO) or ""),
        csi_driver=intern(spec.csi.driver) if spec.csi else None,
        policy=intern(spec.persistent_volume_reclaim_policy),
        phase=intern(volume.status.phase),
        is_deleting=meta.deletion_timestamp is not None,
        has_finalizer=meta.has_finalizer(FINALIZER_VOLUME),
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        namespace=intern(spec.claim_ref.namespace if spec.claim_ref else ""),
    )


def driver_of_volume(volume: Volume, drivers: Drivers) -> str | None:
    """Return the driver that owns the volume (L-071), or None if no known driver owns it."""
    return volume_driver(_entry(volume), drivers)


def volume_driver(facts: VolumeFacts, drivers: Drivers) -> str | None:
    """Return the driver that owns the volume (L-071), or None if no known driver owns it."""
    owners = (drivers.owners.get(name) for name in owner_names(facts))
    return next(filter(None, owners), None)


def volume_keys(entry: VolumeEntry, drivers: Drivers) -> list[Key]:
    """Return the volume's keys; none if no known driver owns the volume."""
    views = _acting(volume_driver(entry, drivers), entry.affinity, drivers)
    return [volume_key(view.queue_name, entry.name, entry.namespace) for view in views]


def keys_of_volume(volume: Json, drivers: Drivers) -> list[Key]:
    """Return a live volume's keys, even if the volume needs no reconcile."""
    views = _acting_on(volume, drivers)
    name = text(volume, "metadata", "name")
    namespace = text(volume, "spec", "claimRef", "namespace")
    return [volume_key(view.queue_name, name, namespace) for view in views]


def keys_of_unsaved(volume: Json, drivers: Drivers) -> list[Key]:
    """Return the keys of the claim for which an unsaved PV was built.

    Any worker that could delete the volume can save its PV.

    Raises:
        AttemptError: the PV has no complete claimRef.
    """
    name, namespace, uid = (
        text(volume, "spec", "claimRef", part) for part in ("name", "namespace", "uid")
    )
    if not (name and namespace and uid):
        raise AttemptError("no claimRef", State.NO_CHANGE)
    views = _acting_on(volume, drivers)
    return [claim_key(view.queue_name, namespace, name, uid) for view in views]


def _acting_on(volume: Json, drivers: Drivers) -> Iterable[DriverView]:
    affinity = optional_mapping(volume, "spec", "nodeAffinity")
    return _acting(volume_driver(facts_of(volume), drivers), affinity, drivers)


def _acting(
    name: str | None, affinity: Mapping[str, Any] | None, drivers: Drivers
) -> Iterable[DriverView]:
    """Return the driver's registrations whose workers act on a volume with this affinity.

    In node deployment only a node that can reach the volume acts on it (ND-012). Every node can
    reach a volume without affinity, so the first node acts on it.
    """
    if name is None:
        return ()
    views = drivers.by_name[name]
    if views[0].node is None:
        return views
    reaching = [view for view in views if _reaches(view, affinity)]
    return reaching if _terms(affinity) else reaching[:1]


def clone_sources(claim: Claim) -> set[str]:
    """Return the `namespace/name` of each claim that this claim is still being cloned from.

    Only a Pending claim needs its source (CL-006). A dataSourceRef counts as well, even if it names
    another namespace (CL-009).
    """
    if claim.status.phase != "Pending":
        return set()
    sources = (claim.spec.data_source, claim.spec.data_source_ref)
    return {
        _source_name(source, claim.metadata.namespace)
        for source in sources
        if source and source.kind == "PersistentVolumeClaim" and source.name
    }


def is_deleting_source(claim: Claim) -> bool:
    """Return True if the claim is being deleted and has the clone-source finalizer (CL-005)."""
    meta = claim.metadata
    return meta.deletion_timestamp is not None and meta.has_finalizer(FINALIZER_CLONE_SOURCE)


def cloning_key(source: str, uid: str, provisioner: str, drivers: Drivers) -> Key | None:
    """Return the key that removes a source's finalizer, or None while no driver can remove it.

    Any driver with CLONE_VOLUME can remove the finalizer (CL-005); the source's own driver is
    preferred.
    """
    serving = sorted(
        (view for view in drivers.views() if view.can_clone),
        key=lambda view: (view.name != provisioner, view.queue_name),
    )
    return Key(KIND_CLONING, serving[0].queue_name, source, uid) if serving else None


def _source_name(source: DataSource, namespace: str) -> str:
    return f"{source.namespace or namespace}/{source.name}"


def _interned(text: str | None) -> str | None:
    return None if text is None else intern(text)


def _terms(affinity: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    required = (affinity or {}).get("required") or {}
    return list(required.get("nodeSelectorTerms") or ())


def _reaches(view: DriverView, affinity: Mapping[str, Any] | None) -> bool:
    """Return True if the node satisfies a term, or if a term cannot be evaluated."""
    terms = _terms(affinity)
    if not terms or not view.node_segments:
        return True
    return any(_term_holds(term, view.node_segments) for term in terms)


def _term_holds(term: Mapping[str, Any], segments: Mapping[str, str]) -> bool:
    for requirement in term.get("matchExpressions") or ():
        if requirement.get("operator") != "In":
            continue
        if segments.get(requirement.get("key", "")) not in (requirement.get("values") or ()):
            return False
    return True
