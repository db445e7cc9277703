"""Computes the topology requirement of CreateVolume (spec section 4, P-310 to P-335).

*Requisite* lists every term that the volume may be accessible from. *Preferred* lists the same
terms, rotated so that the best term is first. Summary (P-315):

| Selected node | strict | allowedTopologies | requisite | preferred |
|---|---|---|---|---|
| yes | yes | none, or one contains the node | the node's term | same |
| yes | no | none | aggregate over the cluster | the node's term first |
| yes | no | set | flattened | first one that contains the node first |
| no | - | set | flattened | rotated by the claim's name |
| no | - | none | aggregate; unset without immediate topology | rotated by the claim's name |

The storage class's binding mode is not consulted, because a selected node means delayed binding
(P-301). The caller checks whether topology is enabled (P-300).

Source: external-provisioner, pkg/controller/topology.go GenerateAccessibilityRequirements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from csi_client.messages import TopologyRequirement
from workers.errors import AttemptError, State
from workers.topology.spreading import start_index
from workers.topology.terms import (
    Term,
    flatten,
    is_subset,
    make_term,
    render_keys,
    render_labels,
    render_term,
    render_terms,
    sort_distinct,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workers.topology.cluster import ClusterTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyInputs:
    """All inputs for computing a claim's requirement (P-301).

    Attributes:
        driver_name: the name of the CSI driver.
        claim_name: the claim's name without its namespace; it determines how volumes are spread.
        cluster: the CSINodes and Nodes at one moment.
        selected_node: the claim's selected-node annotation; empty for immediate binding.
        allowed_topologies: the class's `allowedTopologies`, already translated; empty if unset.
        strict: the value of `--strict-topology`.
        immediate: the value of `--immediate-topology`.
    """

    driver_name: str
    claim_name: str
    cluster: ClusterTopology
    selected_node: str = ""
    allowed_topologies: Sequence[Mapping[str, Any]] = ()
    strict: bool = False
    immediate: bool = True


def accessibility_requirements(inputs: TopologyInputs) -> TopologyRequirement | None:
    """Return the requirement for CreateVolume; None if the field stays unset (P-312).

    This is not called for a retry, because a retry sends the recorded request (P-330, P-335).

    Raises:
        AttemptError: RESCHEDULE, with upstream's bare message, if the selected node has no
            CSINode (P-310.1). NO_CHANGE, with a wrapped message, for all other errors (P-311).
    """
    try:
        return _Attempt(inputs).result()
    except _TopologyError as error:
        message = f"error generating accessibility requirements: {error}"
        raise AttemptError(message, State.NO_CHANGE) from None


class _TopologyError(Exception):
    """An error; its message is wrapped as in P-311."""


class _Attempt:
    """One computation of a requirement, by the steps of section 4."""

    def __init__(self, inputs: TopologyInputs) -> None:
        self._inputs = inputs
        self._node = inputs.selected_node
        self._keys: tuple[str, ...] = ()

    def result(self) -> TopologyRequirement | None:
        selected = self._selected_term() if self._node else None
        if selected is not None and self._inputs.strict:
            self._check_allowed(selected)
            requisite: Sequence[Term] = (selected,)
        else:
            requisite = self._requisite()
        return _requirement(requisite, self._start(requisite, selected)) if requisite else None

    def _selected_term(self) -> Term:
        """Step A: return the selected node's own term (P-310.1 to P-310.3)."""
        cluster, node = self._inputs.cluster, self._node
        if not cluster.has_csi_node(node):
            missing = f'csinode.storage.k8s.io "{node}" not found'
            message = f"failed to get selected CSINode {node}: {missing}"
            raise AttemptError(message, State.RESCHEDULE)
        self._keys = cluster.keys_of(node, self._inputs.driver_name)
        if not self._keys:
            raise _TopologyError(f"no topology key found for node {node}")
        labels = cluster.labels_of(node)
        if not all(key in labels for key in self._keys):
            raise _TopologyError(
                f"topology labels from selected node {render_labels(labels)} does not match "
                f"topology keys from CSINode {render_keys(self._keys)}"
            )
        return make_term([(key, labels[key]) for key in self._keys])

    def _check_allowed(self, selected: Term) -> None:
        """Step A.4, in strict mode: check that the class allows the selected node (P-310.4)."""
        if not self._inputs.allowed_topologies:
            return
        allowed = flatten(self._inputs.allowed_topologies)
        if not any(is_subset(term, selected) for term in allowed):
            raise _TopologyError(
                f"selected node '\"{self._node}\"' topology '{render_term(selected)}' "
                f"is not in allowed topologies: {render_terms(allowed)}"
            )

    def _requisite(self) -> Sequence[Term]:
        """Steps B and C: return the distinct, sorted terms; empty if the field stays unset.

        The field is `accessibility_requirements` of CreateVolume (P-312).
        """
        if self._inputs.allowed_topologies:
            return sort_distinct(flatten(self._inputs.allowed_topologies))
        if not self._node and not self._inputs.immediate:
            return ()
        return self._aggregate()

    def _aggregate(self) -> tuple[Term, ...]:
        """Collect the terms of the cluster's nodes for the driver's keys (P-321)."""
        cluster, driver = self._inputs.cluster, self._inputs.driver_name
        # If a node is selected, only the keys of that node are used.
        sets = (self._keys,) if self._keys else cluster.key_sets(driver)
        if not sets:
            raise _TopologyError("no available topology found")
        terms = cluster.terms(self._keys) if self._keys else cluster.places(driver)
        if not terms:
            keys = render_keys(sets[0])
            raise _TopologyError(f"topologyKeys {keys} were not found on any nodes")
        return terms

    def _start(self, requisite: Sequence[Term], selected: Term | None) -> int:
        """Step D: return the index of the first preferred term (P-314)."""
        if selected is None:
            return start_index(self._inputs.claim_name, len(requisite))
        for index, term in enumerate(requisite):
            if is_subset(term, selected):
                return index
        raise _TopologyError(
            f'topology {render_term(selected)} from selected node "{self._node}" '
            f"is not in requisite: {render_terms(requisite)}"
        )


def _requirement(requisite: Sequence[Term], start: int) -> TopologyRequirement:
    """Return the message for CreateVolume (P-313, P-314).

    It contains all terms, and the same terms rotated to begin at `start`. If a key occurs twice in
    a term, the last value wins (P-320). The message is filled in place. For a driver with thousands
    of terms, one per node, this takes less than half the time.
    """
    requirement = TopologyRequirement()
    for term in requisite:
        requirement.requisite.add().segments.update(term)
    requirement.preferred.extend(requirement.requisite[start:])
    requirement.preferred.extend(requirement.requisite[:start])
    return requirement
