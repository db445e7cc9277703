"""Nodes in the decision: the pre-check, topology data, and ownership in node deployment.

Outside node deployment every claim is owned (P-052). In node deployment a claim belongs to the node
its selected-node annotation names; an Immediate claim without one is raced for: each node waits a
random while, asks its driver for room, and writes its own name (P-053, P-054, ND-004). The wait is
a delayed key, not a blocked thread (D-037), remembered in the key's memo.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING

import msgspec

from csi_client.errors import CsiError
from workers import constants as k
from workers.errors import AttemptError, IgnoredError, State
from workers.kube.errors import ConflictError
from workers.provision.outcome import Action, Outcome, done, retry, wait
from workers.topology.cluster import ClusterTopology
from workers.translate import claims
from workers.translate.claims import Decision
from workers.translate.fields import object_list

if TYPE_CHECKING:
    from workers.kube.objects import JsonObject
    from workers.provision.claims import ClaimPass

_log = logging.getLogger(__name__)

# No node had room: asked again after this long, or at the claim's next event (ND-008).
NO_ROOM_SECONDS = 60.0


def cluster(work: ClaimPass) -> ClusterTopology:
    """CSINodes and Nodes of this moment; in node deployment the local node alone (P-051)."""
    driver = work.driver
    if driver.node_segments is not None:
        return ClusterTopology.of_node(
            driver.settings.node.node_name, driver.name, driver.node_segments
        )
    return work.runtime.clusters.current(work.lease.catalog)


def should_provision(
    work: ClaimPass, claim: JsonObject, storage_class: JsonObject | None
) -> Outcome | None:
    """The pre-check (L-022, L-025); None means an attempt is due."""
    driver = work.driver
    is_qualified = claims.qualifies(claim, driver.name)
    if is_qualified and driver.settings.node.enabled:
        pending = _node_gate(work, claim, storage_class)
        if pending is not None:
            return pending
    decision = claims.should_provision(
        claim, storage_class, known_names=driver.names, is_qualified=is_qualified
    )
    if decision is Decision.PROVISION:
        return None
    if decision is Decision.CLASS_MISSING:
        return retry("storage class not found")
    return done(decision.value)


def check_owner(work: ClaimPass, claim: JsonObject) -> None:
    """The node gate repeated at the start of an attempt (P-055).

    Raises:
        IgnoredError: the claim is assigned to another node.
    """
    node = work.driver.settings.node
    selected = (claim["metadata"].get("annotations") or {}).get(k.ANN_SELECTED_NODE)
    if node.enabled and selected != node.node_name:
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        raise IgnoredError(
            f"not responsible for provisioning of PVC {namespace}/{name} "
            f'because it is not assigned to node "{node.node_name}"'
        )


def _node_gate(
    work: ClaimPass, claim: JsonObject, storage_class: JsonObject | None
) -> Outcome | None:
    """ND-003: None if the claim is this node's, else what becomes of the key."""
    node = work.driver.settings.node
    selected = (claim["metadata"].get("annotations") or {}).get(k.ANN_SELECTED_NODE)
    if selected == node.node_name:
        return None
    if selected:
        return done("claim of another node")
    if (claim.get("spec") or {}).get("volumeName"):
        return done("bound")
    if storage_class is None:
        return retry("storage class not found")
    if storage_class.get("volumeBindingMode") != "Immediate" or not node.immediate_binding:
        return done("waits for its node")
    if not _is_allowed(work, claim, storage_class):
        return done("this node is not in the allowed topologies")
    return _become_owner(work, claim, storage_class)


def _is_allowed(work: ClaimPass, claim: JsonObject, storage_class: JsonObject) -> bool:
    """P-053: with allowedTopologies only a compatible node races."""
    if not work.driver.supports_topology or not object_list(storage_class, "allowedTopologies"):
        return True
    from workers.provision.attempt import Attempt  # noqa: PLC0415 - the two call each other

    try:
        Attempt(work, claim, storage_class, None).topology(
            storage_class, selected_node=work.driver.settings.node.node_name
        )
    except AttemptError:
        return False
    return True


def _become_owner(work: ClaimPass, claim: JsonObject, storage_class: JsonObject) -> Outcome:
    """P-054: wait, ask for room, write the node's name; never provisions in this pass."""
    node = work.driver.settings.node
    due = _due(work.lease.memo)
    if due is None or due > time.time():
        delay = (
            owner_delay_seconds(work.lease.fails, node.base_delay_seconds, node.max_delay_seconds)
            if due is None
            else due - time.time()
        )
        memo = msgspec.json.encode({"owner_due": due or time.time() + delay}).decode()
        return Outcome(
            Action.RETRY,
            delay_seconds=delay,
            base_seconds=0.001,
            cap_seconds=0.001,
            memo=memo,
            reason="waits to become owner",
        )
    if not _has_room(work, claim, storage_class):
        return wait(NO_ROOM_SECONDS, "not enough capacity on this node")
    annotations = dict(claim["metadata"].get("annotations") or {})
    annotations[k.ANN_SELECTED_NODE] = node.node_name
    owned = {**claim, "metadata": {**claim["metadata"], "annotations": annotations}}
    work.lease.check()
    try:
        work.runtime.kube.update_claim(owned)
    except ConflictError:
        return Outcome(Action.RETRY, base_seconds=0.001, cap_seconds=0.001, reason="conflict")
    return done("became owner")


def _has_room(work: ClaimPass, claim: JsonObject, storage_class: JsonObject) -> bool:
    """P-060: GetCapacity for the prepared request; a failed check counts as room."""
    from csi_client import messages as csi  # noqa: PLC0415 - only node deployment needs it
    from workers.provision.attempt import Attempt  # noqa: PLC0415 - the two call each other

    required = claims.requested_bytes(claim)
    if required == 0:
        return True
    attempt = Attempt(work, claim, storage_class, None)
    attempt.selected_node = work.driver.settings.node.node_name
    try:
        prepared = attempt.prepare(check_owner=False)
        requirements = prepared.request.accessibility_requirements
        topologies: list[csi.Topology | None] = [*requirements.requisite] or [None]
        for topology in topologies:
            answer = work.driver.client.get_capacity(
                csi.GetCapacityRequest(
                    volume_capabilities=prepared.request.volume_capabilities,
                    parameters=prepared.request.parameters,
                    accessible_topology=topology,
                )
            )
            if required <= answer.available_capacity:
                return True
    except (AttemptError, CsiError, IgnoredError) as error:
        _log.info("proceeding with becoming owner although the capacity check failed: %s", error)
        return True
    return False


def owner_delay_seconds(failures: int, base_seconds: float, max_seconds: float) -> float:
    """ND-004: exponential, minus a random part of the base; within [0, max]."""
    backoff = min(base_seconds * 2.0 ** min(failures, 60), max_seconds)
    return max(0.0, backoff - random.random() * base_seconds)  # noqa: S311 - jitter


def _due(memo: str) -> float | None:
    try:
        return float(msgspec.json.decode(memo)["owner_due"]) if memo else None
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None


__all__ = ["State", "check_owner", "cluster", "owner_delay_seconds", "should_provision"]
