"""Decides whether this node owns a claim or competes for it (P-052 to P-054, ND-003).

Every node sees every claim. Late-binding claims belong to the node that the scheduler chose. Nodes
compete for all other claims: each node waits a random time that grows with its failed attempts, and
the first node that writes its name into the claim wins.
"""

from __future__ import annotations

import random
from enum import Enum
from typing import TYPE_CHECKING, Any

from workers.constants import ANN_SELECTED_NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class Gate(Enum):
    """The result of `node_gate`."""

    OWNED = "owned"
    NOT_OWNED = "not-owned"
    ELECT = "elect"


class Race(Enum):
    """The state of a claim that this node competes for."""

    OPEN = "open"
    OURS = "ours"
    TAKEN = "taken"
    REPLACED = "replaced"
    GONE = "gone"


def selected_node(claim: Mapping[str, Any]) -> str:
    """Return the node that the claim is assigned to; "" if there is none."""
    annotations: Mapping[str, str] = claim["metadata"].get("annotations") or {}
    return annotations.get(ANN_SELECTED_NODE, "")


def node_gate(
    claim: Mapping[str, Any],
    storage_class: Mapping[str, Any],
    node_name: str,
    *,
    immediate_binding: bool,
    is_allowed: Callable[[], bool],
) -> Gate:
    """Return whether this node owns the claim, does not own it, or may compete for it.

    Spec: P-052, P-053, ND-003. After ELECT, this reconcile does not provision even if this node
    wins, because the update of the claim causes another reconcile.

    Args:
        claim: the PersistentVolumeClaim.
        storage_class: the class of the claim.
        node_name: the value of NODE_NAME.
        immediate_binding: `--node-deployment-immediate-binding`.
        is_allowed: called last, and only if the class has `allowedTopologies`; returns True if
            topology is off or a topology requirement can be built for this node.
    """
    node = selected_node(claim)
    if node:
        return Gate.OWNED if node == node_name else Gate.NOT_OWNED
    if storage_class.get("volumeBindingMode") != "Immediate" or not immediate_binding:
        return Gate.NOT_OWNED
    if storage_class.get("allowedTopologies") and not is_allowed():
        return Gate.NOT_OWNED
    return Gate.ELECT


def owner_delay_seconds(
    base_seconds: float,
    max_seconds: float,
    attempts: int,
    draw: Callable[[], float] = random.random,
) -> float:
    """Return how long to wait before trying to own a claim (P-054 step 1, ND-004).

    The result is `min(base x 2^attempts, max)` minus a random part of base, but at least zero. If
    base is at most max, the first wait is in (0, base].

    Args:
        base_seconds: `--node-deployment-base-delay`.
        max_seconds: `--node-deployment-max-delay`.
        attempts: the number of this node's earlier attempts for this claim UID.
        draw: returns a number in [0, 1).
    """
    # 2^1000 exceeds every delay, and a float's exponent ends at 1023.
    grown = min(base_seconds * 2.0 ** min(attempts, 1000), max_seconds)
    return max(0.0, grown - base_seconds * draw())


def race(claim_uid: str, current: Mapping[str, Any] | None, node_name: str) -> Race:
    """Return the state of the race for a claim (P-054 steps 2 and 4, C-132, C-134).

    Args:
        claim_uid: the UID of the claim when the wait began.
        current: the claim that has this name now; None if there is none.
        node_name: the value of NODE_NAME.
    """
    if current is None:
        return Race.GONE
    if current["metadata"].get("uid") != claim_uid:
        return Race.REPLACED
    node = selected_node(current)
    if not node:
        return Race.OPEN
    return Race.OURS if node == node_name else Race.TAKEN


def is_enough(requested_bytes: int, available_bytes: Iterable[int]) -> bool:
    """Return True if any of the node's capacities is large enough (P-060, ND-006).

    Zero bytes always fit. `available_bytes` is read lazily, because each number costs a GetCapacity
    call.
    """
    return requested_bytes == 0 or any(requested_bytes <= size for size in available_bytes)
