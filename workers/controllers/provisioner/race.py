"""Lets a node claim an unowned PVC: wait, check free space, write the node's name (P-054, ND-004).

The wait is a delayed key, not a blocked thread (D-037). The key's reconcile state holds the time at
which the wait ends and the number of attempts. Each reconcile reads the claim again, so the node
does not race for a claim that has meanwhile been taken, replaced or deleted. The delay does not use
the key's failure counter, because an event may cause the key to be reconciled early.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import msgspec

from csi_client import messages as csi
from csi_client.errors import CsiError
from workers import constants as k
from workers.controllers.provisioner.attempt import Attempt
from workers.engine.outcome import Action, Outcome, done, retry
from workers.errors import AttemptError, IgnoredError
from workers.kube.errors import ConflictError, RefusedError
from workers.nodemode.ownership import is_enough, owner_delay_seconds
from workers.observability.logging import get_logger
from workers.translate import claims

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.controllers.provisioner.work import ClaimWork
    from workers.kube.objects import JsonObject

_log = get_logger(__name__)

# The worker of a node without enough space checks again after this time, or at the claim's next
# event (ND-008).
NO_ROOM_SECONDS: Final = 60.0
# Disables the queue's own back-off, so that only `delay_seconds` sets the wait.
_NO_BACKOFF_SECONDS: Final = 0.001


@dataclass(frozen=True, slots=True)
class Wait:
    """The reconcile state of a racing key: the number of its attempts, and the end of its wait."""

    attempts: int = 0
    due: float | None = None

    @classmethod
    def read(cls, memo: str) -> Self:
        """Parse a memo; any other string counts as a first attempt."""
        try:
            record = msgspec.json.decode(memo)
            due = record["owner_due"]
            return cls(int(record["attempts"]), None if due is None else float(due))
        except (msgspec.DecodeError, KeyError, TypeError, ValueError):
            return cls()

    def text(self) -> str:
        """Serialize the wait for storage in a memo."""
        record = {"attempts": self.attempts, "owner_due": self.due}
        return msgspec.json.encode(record).decode()


def become_owner(work: ClaimWork, claim: JsonObject, storage_class: JsonObject) -> Outcome:
    """Take one step of the race; a later reconcile provisions the volume."""
    node = work.driver.settings.node
    known = Wait.read(work.lease.memo)
    now = work.lease.session.now()
    if known.due is None:
        delay = owner_delay_seconds(node.base_delay_seconds, node.max_delay_seconds, known.attempts)
        return _again(delay, Wait(known.attempts, now + delay), "waits to become owner")
    if known.due > now:
        return _again(known.due - now, known, "waits to become owner")
    if not has_room(work, claim, storage_class):
        later = Wait(known.attempts + 1)
        return _again(NO_ROOM_SECONDS, later, "not enough capacity on this node")
    return _own(work, claim, Wait(known.attempts + 1))


def _own(work: ClaimWork, claim: JsonObject, after_conflict: Wait) -> Outcome:
    """Write this node's name (P-054 step 4); a conflict starts a new, longer wait (C-133)."""
    node_name = work.driver.settings.node.node_name
    annotations = dict(claim["metadata"].get("annotations") or {})
    annotations[k.ANN_SELECTED_NODE] = node_name
    owned = {**claim, "metadata": {**claim["metadata"], "annotations": annotations}}
    work.lease.check()
    try:
        work.runtime.effects.kube.update_claim(owned)
    except ConflictError:
        return _again(0.0, after_conflict, "conflict")
    except RefusedError as error:
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        work.event(
            claim,
            "Warning",
            k.REASON_PROVISIONING_FAILED,
            f"node check failed: PVC {namespace}/{name}: "
            f'selecting node "{node_name}" for PVC failed: {error}',
        )
        return retry("node not selected")
    return done("became owner")


def has_room(work: ClaimWork, claim: JsonObject, storage_class: JsonObject) -> bool:
    """Return True if GetCapacity reports enough space, or if the check fails (P-060, C-135)."""
    try:
        return is_enough(
            claims.requested_bytes(claim), _available_bytes(work, claim, storage_class)
        )
    except (AttemptError, CsiError, IgnoredError) as error:
        _log.info("trying to own the claim although the capacity check failed", err=error)
        return True


def _available_bytes(
    work: ClaimWork, claim: JsonObject, storage_class: JsonObject
) -> Iterator[int]:
    """Yield the capacity of each requisite topology, or of the whole driver if there is none.

    Writes nothing to the API server (D-011).
    """
    attempt = Attempt(work, claim, storage_class, None, is_rehearsal=True)
    attempt.selected_node = work.driver.settings.node.node_name
    request = attempt.prepare().request
    topologies: list[csi.Topology | None] = [*request.accessibility_requirements.requisite]
    for topology in topologies or [None]:
        answer = work.runtime.effects.client(work.driver).get_capacity(
            csi.GetCapacityRequest(
                volume_capabilities=request.volume_capabilities,
                parameters=request.parameters,
                accessible_topology=topology,
            )
        )
        yield answer.available_capacity


def _again(delay_seconds: float, memo: Wait, reason: str) -> Outcome:
    return Outcome(
        Action.RETRY,
        delay_seconds=delay_seconds,
        base_seconds=_NO_BACKOFF_SECONDS,
        cap_seconds=_NO_BACKOFF_SECONDS,
        memo=memo.text(),
        reason=reason,
    )
