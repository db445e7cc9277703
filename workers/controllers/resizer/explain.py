"""Explains why a claim does not have its requested size or class, for `csi-fleet explain pvc`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workers.controllers.resizer.claim import (
    BOUND,
    ClaimView,
    condition_of,
    read_claim,
    read_volume,
)
from workers.controllers.resizer.rules import KIND
from workers.controllers.resizer.words import ANN_RESIZER, Condition, ModifyState, Part
from workers.errors import ApiError
from workers.explain import queueing
from workers.explain.commands import DESCRIBE
from workers.explain.facts import Cause
from workers.explain.generic import Explained
from workers.explain.moves import USER
from workers.explain.serving import Served, of_controller
from workers.explain.words import moment
from workers.kube.errors import NotFoundError, Unreachable
from workers.migration import plugins
from workers.queue.inspect import read_key
from workers.queue.keys import Key
from workers.translate.fields import annotations_of, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.cli.tools import Tools
    from workers.kube.objects import JsonObject
    from workers.queue.inspect import KeyState

RESIZER: Final = "resizer"
NOBODY: Final = Served(RESIZER)
_AT_THE_NODE: Final = frozenset({Part.NODE_INFEASIBLE, Part.NODE_IN_PROGRESS})


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """The facts about a claim's size and class from which `explain` finds the cause.

    Attributes:
        claim: the claim, read live; None if it does not exist.
        volume: the claim's PV; None if it is missing.
        driver_name: the name of the volume's driver; "" if it is unknown.
        driver: the driver's registration; None if no worker runs the resizer for the driver.
        served: the drivers that workers serve, with and without the resizer.
        attributes_class: the requested VolumeAttributesClass; None if it is missing.
        state: the state of the claim's key; None if the key is not in the queue.
        node: the node that has a pod of the claim and must expand the file system; "" if unknown.
    """

    namespace: str
    name: str
    claim: JsonObject | None = None
    volume: JsonObject | None = None
    driver_name: str = ""
    driver: Mapping[str, Any] | None = None
    served: Served = NOBODY
    attributes_class: JsonObject | None = None
    state: KeyState | None = None
    workers: int = 0
    node: str = ""


def explain(tools: Tools, noun: str, namespace: str, name: str) -> Explained:
    """Gather the facts and return the first cause that applies.

    Raises:
        ApiError: the API server does not answer, or refuses to show an object.
        QueueUnavailable: Redis does not answer.
    """
    del noun  # called only for claims
    facts = gather(tools, namespace, name)
    cause = change_cause(facts).with_names(driver=facts.driver_name, node=facts.node)
    return Explained(cause, facts.state, facts.claim, facts.volume)


def gather(tools: Tools, namespace: str, name: str) -> ChangeFacts:
    """Read the claim, the volume, the class and the state in Redis.

    Raises:
        ApiError: the API server does not answer, or refuses to show an object.
        QueueUnavailable: Redis does not answer.
    """
    try:
        claim = tools.kube.get_claim(namespace, name)
    except NotFoundError:
        return ChangeFacts(namespace, name)
    if (claim.get("status") or {}).get("phase") != BOUND:
        return ChangeFacts(namespace, name, claim=claim)  # an unbound claim needs no other facts
    view = read_claim(claim)
    volume = _found(tools.kube.get_volume, view.volume_name)
    driver_name = _driver_name(claim, volume)
    records = tools.registry.alive()
    grown = of_controller(records, RESIZER).values()
    driver = next((one for one in grown if one["name"] == driver_name), None)
    queue_name = driver_name if driver is None else str(driver["queue_name"])
    key = Key(KIND, queue_name, f"{namespace}/{name}", view.uid)
    return ChangeFacts(
        namespace,
        name,
        claim=claim,
        volume=volume,
        driver_name=driver_name,
        driver=driver,
        served=Served.by(records, RESIZER),
        attributes_class=_found(tools.kube.get_attributes_class, view.wanted_class),
        state=read_key(tools.redis, key),
        workers=len(tools.presence.workers()),
        node=_node_of(tools, namespace, name) if view.part in _AT_THE_NODE else "",
    )


def _node_of(tools: Tools, namespace: str, name: str) -> str:
    """Return the node of a pod that uses the claim; "" if there is none, or it cannot be read."""
    try:
        pods = list(tools.kube.list_pods_using(namespace, name))
    except Unreachable:
        raise
    except ApiError:
        return ""
    return next((node for pod in pods if (node := text(pod, "spec", "nodeName"))), "")


def _found(read: Any, name: str) -> JsonObject | None:
    try:
        found: JsonObject | None = read(name) if name else None
    except NotFoundError:
        return None
    return found


def _driver_name(claim: JsonObject, volume: JsonObject | None) -> str:
    found = read_volume(volume).csi_driver if volume is not None else ""
    annotated = annotations_of(claim).get(ANN_RESIZER, "")
    return found or (annotated if plugins.of_driver(annotated) else "")


def change_cause(facts: ChangeFacts) -> Cause:
    """Return the first cause that applies."""
    if facts.claim is None:
        return Cause(
            "not-found",
            f"There is no claim {facts.namespace}/{facts.name}.",
            "Check the namespace and the name: kubectl get pvc -A",
        )
    if (facts.claim.get("status") or {}).get("phase") != BOUND:
        return Cause(
            "not-bound",
            "The claim is not bound. Only a bound claim can be expanded.",
            is_problem=False,
        )
    claim = read_claim(facts.claim)
    is_small = claim.wanted.size_bytes > claim.actual.size_bytes
    is_other = claim.modify_state is not None or claim.wanted_class != claim.current_class
    if not is_small and not is_other:
        return Cause(
            "as-wanted",
            f"The claim has the size and the class that it requests: {claim.actual.text}.",
            is_problem=False,
        )
    shared = _shared(facts, claim)
    if shared is not None:
        return shared
    size = _size(facts, claim) if is_small else None
    kind = _class(facts, claim) if is_other else None
    for cause in (size, kind):
        if cause is not None and cause.is_problem:
            return cause
    return _queue(facts) or size or kind or _failed(facts, claim)


def _shared(facts: ChangeFacts, claim: ClaimView) -> Cause | None:
    """Return the cause that affects both the size and the class; None if there is none."""
    if facts.volume is None:
        return Cause(
            "volume-missing",
            f"The claim's volume {claim.volume_name} does not exist.",
            "Restore the PersistentVolume from a backup; csi-fleet continues once it exists. "
            "Without it the claim cannot be used.",
            templates=("kubectl get pv", DESCRIBE),
        )
    volume = read_volume(facts.volume)
    if (volume.claim_namespace, volume.claim_uid) != (claim.namespace, claim.uid):
        return Cause(
            "volume-of-another",
            f"Volume {volume.name} names a different claim.",
            "Correct the volume's spec.claimRef.",
        )
    if not facts.driver_name:
        return Cause(
            "not-ours",
            f"Volume {volume.name} does not belong to a CSI driver, so csi-fleet does not change "
            "it.",
            is_problem=False,
        )
    if facts.driver is None:
        return queueing.unserved(facts.driver_name, facts.served, workers=facts.workers)
    if facts.state is not None:
        return queueing.running(facts.state) or queueing.paused(facts.state)
    return None


def _size(facts: ChangeFacts, claim: ClaimView) -> Cause | None:
    wanted, allocated = claim.wanted.text, claim.allocated.text if claim.allocated else ""
    if claim.part in {Part.NODE_PENDING, Part.NODE_IN_PROGRESS}:
        grown = f"The storage backend has provided {allocated}; "
        waits = "the node is expanding the file system."
        if claim.part == Part.NODE_PENDING:
            waits = "the file system is expanded when a pod that uses the volume runs on a node."
        rest = "" if allocated == wanted else f" {wanted} follows after that."
        return Cause(
            "waits-for-node",
            grown + waits + rest,
            "Start or restart a pod that uses the claim."
            if claim.part == Part.NODE_PENDING
            else "If this persists, check the driver's pod on that node, and the kubelet's log.",
            move=USER if claim.part == Part.NODE_PENDING else "",
        )
    if claim.part == Part.NODE_INFEASIBLE:
        message = _message(facts, Condition.NODE_ERROR)
        return Cause(
            "node-failed",
            f"{_node(facts)} could not expand the file system: {message}",
            "Check the logs of the kubelet and the driver on that node.",
        )
    if claim.part == Part.CONTROLLER_INFEASIBLE:
        until = facts.state.due if facts.state is not None else 0.0
        again = f" The expansion is retried at {moment(until)}." if until else ""
        return Cause(
            "size-infeasible",
            f"The driver rejects the size {allocated}: "
            f"{_message(facts, Condition.CONTROLLER_ERROR)}",
            f"Request a smaller size; csi-fleet retries as soon as the size changes.{again}",
            until,
        )
    if claim.part == Part.CONTROLLER_IN_PROGRESS and allocated != wanted:
        error = queueing.last_error(facts.state, None)
        if error is not None:
            return Cause(
                "size-pinned",
                f"The driver may still be expanding the volume to {allocated} (its last response: "
                f"{error[0]}). csi-fleet requests that size until the driver's response is final, "
                f"and {wanted} after that.",
                _again(facts),
            )
    return None


def _node(facts: ChangeFacts) -> str:
    return f"Node {facts.node}" if facts.node else "The node"


def _class(facts: ChangeFacts, claim: ClaimView) -> Cause | None:
    wanted = claim.wanted_class
    if claim.modify_state == ModifyState.INFEASIBLE and wanted == claim.modify_target:
        until = facts.state.due if facts.state is not None else 0.0
        return Cause(
            "class-infeasible",
            f'The driver rejects VolumeAttributesClass "{wanted}": '
            f"{_message(facts, Condition.MODIFY_ERROR)}",
            "Choose a different class; csi-fleet tries it at once.",
            until,
            names={"attributes_class": wanted},
        )
    if not wanted and claim.modify_state != ModifyState.IN_PROGRESS:
        return Cause(
            "class-taken-back",
            "The request to change the VolumeAttributesClass was cancelled.",
            is_problem=False,
        )
    if wanted and facts.attributes_class is None:
        return Cause(
            "class-missing",
            f'VolumeAttributesClass "{wanted}" does not exist.',
            "Create the class, or choose a different one; csi-fleet then continues at once.",
            templates=("kubectl get volumeattributesclass", DESCRIBE),
        )
    driver = text(facts.attributes_class or {}, "driverName")
    if wanted and driver != facts.driver_name:
        return Cause(
            "class-of-another-driver",
            f'VolumeAttributesClass "{wanted}" is for driver {driver}, but the volume belongs to '
            f"driver {facts.driver_name}.",
            "Choose a class that is for the volume's driver.",
        )
    if claim.modify_state == ModifyState.IN_PROGRESS and wanted != claim.modify_target:
        return Cause(
            "class-pinned",
            f'The driver may still be applying class "{claim.modify_target}". csi-fleet requests '
            f'that class until the driver\'s answer is final, and "{wanted}" after that.',
            _again(facts),
        )
    return None


def _queue(facts: ChangeFacts) -> Cause | None:
    if facts.state is None:
        return None
    return queueing.queued(facts.state)


def _failed(facts: ChangeFacts, claim: ClaimView) -> Cause:
    """Return a cause with the last attempt's error, or with the reason that it is unknown."""
    error = queueing.last_error(facts.state, None)
    again = _again(facts)
    if error is not None and facts.state is not None:
        return queueing.defect(facts.state, error[0], again) or Cause(
            "change-failed", f"The last attempt failed: {error[0]}", again, facts.state.due
        )
    if facts.state is not None and facts.state.due:
        return Cause(
            "change-waits",
            "Nothing has failed; the change is waiting, for example for the end of a call whose "
            "worker died.",
            again,
            facts.state.due,
            is_problem=False,
        )
    what = f"{claim.actual.text} of {claim.wanted.text}"
    return Cause(
        "change-unseen",
        f"The claim has {what}, but no change is queued for it.",
        "Check again in a moment. If this persists, check the watcher's log.",
    )


def _again(facts: ChangeFacts) -> str:
    return queueing.next_try(facts.state) if facts.state is not None else ""


def _message(facts: ChangeFacts, kind: Condition) -> str:
    found = condition_of(facts.claim or {}, kind)
    return text(found, "message") if found is not None else "no message"
