"""Finds the source of a claim's volume, and checks that the claim may use it.

Normalises `dataSource` and `dataSourceRef` to one DataSource, and checks its grant, name, kind and
group (P-201 to P-209). `snapshots` and `clones` check the source objects. The caller reads all
objects: one function names the object to read, and the next function checks it.
Source: external-provisioner, pkg/controller/controller.go ProvisionExt, IsGranted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.constants import GROUP_SNAPSHOT
from workers.errors import AttemptError, IgnoredError, State
from workers.translate.fields import Json, object_list, optional_mapping, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SNAPSHOT_KIND: Final = "VolumeSnapshot"
CLAIM_KIND: Final = "PersistentVolumeClaim"
POPULATOR_MESSAGE: Final = "Assuming an external populator will provision the volume"


@dataclass(frozen=True, slots=True)
class DataSource:
    """The normalised source of a claim; `namespace` is the source's namespace."""

    kind: str
    name: str
    api_group: str
    namespace: str
    claim_namespace: str
    claim_name: str

    @property
    def is_snapshot(self) -> bool:
        """Whether the kind is VolumeSnapshot; `check_source` checks the group."""
        return self.kind == SNAPSHOT_KIND

    @property
    def is_claim(self) -> bool:
        """Whether the source is a core PersistentVolumeClaim, not a custom resource (D-019).

        Groups of custom resources contain a dot. Groups without a dot (`v1`, `core`) are user
        mistakes that csi-provisioner accepts as clones, so they are accepted here too.
        """
        return self.kind == CLAIM_KIND and "." not in self.api_group

    @property
    def crosses_namespaces(self) -> bool:
        """Whether the source is in another namespace and needs a ReferenceGrant (P-204)."""
        return self.namespace != self.claim_namespace


@dataclass(frozen=True, slots=True)
class ContentSource:
    """The source that the driver copies from; exactly one id is set.

    Attributes:
        snapshot_id, volume_id: the driver's id.
        warning: a line for the log; "" if there is none.
        node_affinity: the topology of a snapshot, as its content has it; empty for any.
    """

    snapshot_id: str = ""
    volume_id: str = ""
    warning: str = ""
    node_affinity: Sequence[Json] = ()


class PopulatorSourceError(IgnoredError):
    """An external populator handles this source (P-209).

    The caller emits the Normal event `Provisioning` with `event_message`, then drops the claim.
    """

    event_message = POPULATOR_MESSAGE


class SourceError(AttemptError):
    """The source cannot be used now (NoChange). `detail` is the cause, only for the log."""

    def __init__(self, source: DataSource, message: str, *, detail: str = "") -> None:
        super().__init__(
            f"error getting handle for DataSource Type {source.kind} by Name {source.name}: "
            f"{message}",
            State.NO_CHANGE,
        )
        self.detail = detail


def normalise(claim: Json, *, cross_namespace: bool) -> DataSource | None:
    """Return the source of a claim, or None for an empty volume (P-201 to P-203).

    Args:
        claim: the claim.
        cross_namespace: the feature gate CrossNamespaceVolumeDataSource.

    Raises:
        AttemptError: Finished; `dataSourceRef` names a namespace and the gate is off. An empty
            namespace counts as absent (D-036).
    """
    claim_namespace = text(claim, "metadata", "namespace")
    found = optional_mapping(claim, "spec", "dataSource")
    field = "dataSource"
    namespace = ""
    if found is None:
        found = optional_mapping(claim, "spec", "dataSourceRef")
        field = "dataSourceRef"
        namespace = text(claim, "spec", field, "namespace")
    if found is None:
        return None
    if namespace and not cross_namespace:
        raise AttemptError(
            "dataSourceRef namespace specified but the CrossNamespaceVolumeDataSource feature is "
            "disabled",
            State.FINISHED,
        )
    return DataSource(
        kind=text(claim, "spec", field, "kind"),
        name=text(claim, "spec", field, "name"),
        api_group=text(claim, "spec", field, "apiGroup"),
        namespace=namespace or claim_namespace,
        claim_namespace=claim_namespace,
        claim_name=text(claim, "metadata", "name"),
    )


def grants_read_failed(source: DataSource, error: object) -> AttemptError:
    """Return the error for grants that could not be listed (P-204)."""
    return AttemptError(
        f"error getting ReferenceGrants in {source.namespace} namespace from api server: {error}",
        State.FINISHED,
    )


def _allows(grant: Json, source: DataSource) -> bool:
    """Return True if a `from` entry and a `to` entry of the grant match the use."""
    if text(grant, "metadata", "namespace") != source.namespace:
        return False
    is_from = any(
        text(entry, "group") == ""
        and text(entry, "kind") == CLAIM_KIND
        and text(entry, "namespace") == source.claim_namespace
        for entry in object_list(grant, "spec", "from")
    )
    return is_from and any(
        text(entry, "group") == source.api_group
        and text(entry, "kind") == source.kind
        and text(entry, "name") in {"", source.name}
        for entry in object_list(grant, "spec", "to")
    )


def check_grants(source: DataSource, grants: Iterable[Json]) -> None:
    """Check that the owner of the source's namespace allows its use (P-204, P-205).

    This is called before `check_source`, so a populator source without a grant is an error too
    (P-206).

    Args:
        source: the source; it needs no grant if it is in the claim's own namespace.
        grants: the ReferenceGrants of the source's namespace.

    Raises:
        AttemptError: Finished; no grant allows the use.
    """
    if not source.crosses_namespaces or any(_allows(grant, source) for grant in grants):
        return
    raise AttemptError(
        f"accessing {source.namespace}/{source.name} of {source.kind} dataSource from "
        f"{source.claim_namespace}/{source.claim_name} isn't allowed",
        State.FINISHED,
    )


def check_source(source: DataSource) -> None:
    """Check the name, kind and group of a source (P-207 to P-209).

    Raises:
        AttemptError: Finished; the name is empty or a snapshot's group is wrong.
        PopulatorSourceError: the kind is unknown, so a populator may handle the source.
    """
    if not source.name:
        raise AttemptError(f"the PVC source not found for PVC {source.claim_name}", State.FINISHED)
    if source.is_snapshot and source.api_group != GROUP_SNAPSHOT:
        raise AttemptError(
            "the PVC source does not belong to the right APIGroup. "
            f"Expected {GROUP_SNAPSHOT}, Got {source.api_group}",
            State.FINISHED,
        )
    if not source.is_snapshot and not source.is_claim:
        raise PopulatorSourceError(
            f"data source ({source.kind}) is not handled by the provisioner, "
            "assuming an external populator will provision it",
        )
