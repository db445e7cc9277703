"""The topology of snapshots (KEP-5943): which places are requested, and what is stored.

All of this is behind the feature gate `VolumeSnapshotTopology` and the driver's capability
SNAPSHOT_ACCESSIBILITY_CONSTRAINTS (SNS-120). A selector that was recorded with a request is sent
again with it, even if the gate has been switched off since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from csi_client import answers
from csi_client import messages as csi
from workers.errors import AttemptError, State
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.topology import selectors
from workers.translate.fields import selector_at
from workers.translate.snapshot_objects import (
    CAPABILITY_TOPOLOGY,
    NODE_AFFINITY_DROPPED,
    node_affinity,
)

if TYPE_CHECKING:
    from workers.controllers.snapshotter.work import ContentPass
    from workers.kube.objects import JsonObject
    from workers.topology.selectors import Selector

_log = get_logger(__name__)

# The drivers for which this process has logged that the field is dropped, until it is stored again.
_was_dropped: set[str] = set()


def is_on(work: ContentPass) -> bool:
    """True if the gate is on and the driver's snapshots have a topology (SNS-120)."""
    return work.settings.has_topology and work.driver.supports(CAPABILITY_TOPOLOGY)


def allowed(work: ContentPass, snapshot_class: JsonObject) -> Selector:
    """Return the class's `allowedTopologies`; [] if they are not to be sent (SNS-121, SNS-122).

    Raises:
        AttemptError: the selector stands for too many places.
    """
    if not work.settings.has_topology:
        return []
    found = selector_at(snapshot_class, "allowedTopologies")
    if not found:
        return []
    name = snapshot_class["metadata"]["name"]
    if not is_on(work):
        _log.warning(
            "the allowedTopologies of a VolumeSnapshotClass are not sent, because the driver has "
            "no capability SNAPSHOT_ACCESSIBILITY_CONSTRAINTS",
            snapshot_class=name,
        )
        return []
    try:
        if selectors.places(found):
            return found
    except selectors.TooManyPlacesError as error:
        raise AttemptError(
            f"allowedTopologies of VolumeSnapshotClass {name} have {error}. Use fewer values",
            State.NO_CHANGE,
        ) from error
    _log.warning(
        "the allowedTopologies of a VolumeSnapshotClass are not sent, because no place satisfies "
        "them",
        snapshot_class=name,
    )
    return []


def requirement(selector: Selector) -> csi.TopologyRequirement | None:
    """Return the requirement for CreateSnapshot; None for an empty selector."""
    if not selector:
        return None
    places = [csi.Topology(segments=dict(term)) for term in selectors.places(selector)]
    return csi.TopologyRequirement(requisite=places, preferred=places)


def check(work: ContentPass, answer: Any) -> None:
    """Checks the topology in an answer, if it is used (SNS-124).

    Raises:
        UnusableAnswerError: a key or value cannot be a node label.
    """
    if is_on(work):
        answers.check_topology(answer, driver=work.driver.name)


def save(work: ContentPass, snapshot: csi.Snapshot) -> None:
    """Writes the snapshot's topology to a content that has none (SNS-123, SNS-125).

    Raises:
        Gone: the content no longer exists.
        RefusedError: the API server refused the write.
    """
    if not is_on(work) or node_affinity(work.item):
        return
    found = selectors.selector_of_answer(snapshot.accessible_topology)
    if not found:
        return
    work.write(
        "write-topology",
        lambda item: None if node_affinity(item) else {"spec": {"nodeAffinity": found}},
    )
    driver = work.driver.name
    if node_affinity(work.item):
        _was_dropped.discard(driver)
        return
    trail.note("error", NODE_AFFINITY_DROPPED)
    if driver not in _was_dropped:
        _was_dropped.add(driver)
        _log.warning(
            "The API server dropped the field nodeAffinity of a VolumeSnapshotContent: its CRD "
            "does not have the field, so the topology of snapshots is not stored. Install the CRDs "
            "that have it; snapshots that are taken afterwards get the field",
            content=work.name,
        )
