"""Decides whether an attempt for a claim is due and, in node deployment, due on this node.

Outside node deployment every claim is owned (P-052). In node deployment a claim belongs to the node
that its selected-node annotation names. The nodes race for an Immediate claim without that
annotation; see `workers.controllers.provisioner.race`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.controllers.provisioner.attempt import Attempt
from workers.controllers.provisioner.race import become_owner
from workers.engine.outcome import Outcome, done, retry
from workers.errors import AttemptError
from workers.nodemode.ownership import Gate, node_gate, selected_node
from workers.translate import claims
from workers.translate.claims import Decision

if TYPE_CHECKING:
    from workers.controllers.provisioner.work import ClaimWork
    from workers.kube.objects import JsonObject


def should_provision(
    work: ClaimWork, claim: JsonObject, storage_class: JsonObject | None
) -> Outcome | None:
    """Return None if an attempt is due, else the outcome for the key (L-022, L-025)."""
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


def _node_gate(
    work: ClaimWork, claim: JsonObject, storage_class: JsonObject | None
) -> Outcome | None:
    """Return None if the claim belongs to this node, else the outcome for the key (ND-003)."""
    node = work.driver.settings.node
    if not selected_node(claim) and storage_class is None:
        return retry("storage class not found")
    gate = node_gate(
        claim,
        storage_class or {},
        node.node_name,
        immediate_binding=node.immediate_binding,
        is_allowed=lambda: _is_allowed(work, claim, storage_class or {}),
    )
    if gate is Gate.OWNED:
        return None
    if gate is Gate.NOT_OWNED:
        return done("not this node's")
    return become_owner(work, claim, storage_class or {})


def _is_allowed(work: ClaimWork, claim: JsonObject, storage_class: JsonObject) -> bool:
    """Return True if the class's allowedTopologies include this node (P-053)."""
    if not work.driver.supports_topology:
        return True
    try:
        Attempt(work, claim, storage_class, None).topology(
            storage_class, selected_node=work.driver.settings.node.node_name
        )
    except AttemptError:
        return False
    return True
