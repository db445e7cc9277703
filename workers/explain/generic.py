"""Explains any object from the queue, for kinds that have no explanation of their own.

A key consists of kind, queue name, object and UID. All drivers whose workers run the controller are
tried, so the object's fields need not be understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers.explain import queueing
from workers.explain.facts import Cause
from workers.explain.quietly import quietly
from workers.explain.serving import runs
from workers.kube.errors import NotFoundError
from workers.queue.inspect import KeyState, read_key
from workers.queue.keys import Key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from workers.cli.tools import Tools
    from workers.explain.nouns import Noun
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource
    from workers.spec import Kind, Spec

NOTHING = Cause("nothing-to-do", "No work is pending for this object.", is_problem=False)
# Causes from the queue that take precedence over anything that the object's fields show.
QUEUE_FIRST = frozenset(
    {
        "not-found",
        "crd-missing",
        "paused",
        "driver-lost",
        "lease-elsewhere",
        "running",
        "driver-slow",
        "volume-busy",
        "no-limits",
        "refused",
        "internal-error",
    }
)


@dataclass(frozen=True, slots=True)
class Explained:
    """One controller's explanation of an object.

    Attributes:
        cause: why the object is waiting, or that it is not waiting.
        state: the state of the object's key; None if the queue has no data about the key.
        claim: the claim to show the history of; None if there is none.
        volume: the PV to show the history of; None if there is none.
    """

    cause: Cause
    state: KeyState | None = None
    claim: JsonObject | None = None
    volume: JsonObject | None = None


def explain(tools: Tools, noun: Noun, *, namespace: str, name: str) -> Explained:
    """Explain the object from the state of its keys in the queue.

    Raises:
        ApiError: the API server does not answer, or refuses to show the object.
        QueueUnavailable: Redis does not answer.
    """
    try:
        found = tools.kube.get(noun.resource, name, namespace=namespace)
    except NotFoundError as error:
        if cause := unserved_kind(tools, noun.resource, name, error):
            return Explained(cause)
        shown = f"{namespace}/{name}" if namespace else name
        return Explained(Cause("not-found", f"There is no {noun.word} {shown}.", "Check the name."))
    records = tools.registry.alive()
    states = known_states(tools, records, noun, found)
    for state in states:
        is_waiting = state.is_known or state.fails  # if not, there is only a history
        held = queueing.paused(state) if is_waiting else None
        cause = queueing.running(state) or held or queueing.queued(state) or _failed(state)
        if cause is not None:
            return Explained(cause, state)
    if not any(_serves(record, spec) for record in records.values() for spec, _ in noun.kinds):
        programs = ", ".join(sorted({spec.name for spec, _ in noun.kinds}))
        return Explained(
            Cause(
                "no-controller",
                f"No worker runs the controller for this object: {programs}.",
                f"Add the controller to --controllers of a worker, or start a worker with "
                f"--controllers={programs}, unless another program does this work.",
            )
        )
    return Explained(NOTHING)


def unserved_kind(
    tools: Tools, resource: Resource, name: str, error: NotFoundError
) -> Cause | None:
    """Return a cause if the API server does not serve the kind of the object, else None."""
    if error.is_about(name):
        return None
    if quietly(lambda: tools.kube.is_served(resource), default=True):
        return None
    crd = f"{resource.plural}.{resource.group}"
    return Cause(
        "crd-missing",
        f"The API server does not know the kind {resource.kind}: the CRD {crd} is not installed, "
        f"or not in version {resource.version}.",
        "Install the CRDs of the snapshots. csi-fleet then continues automatically.",
        names={"crd": crd},
    )


def known_states(
    tools: Tools,
    records: Mapping[str, Mapping[str, Any]],
    noun: Noun,
    found: JsonObject,
) -> list[KeyState]:
    """Return the states of the object's keys that are waiting, running, failing or have a history.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    states = [
        read_key(tools.redis, key)
        for spec, kind in noun.kinds
        for key in candidates(records, spec, kind, found)
    ]
    return [state for state in states if state.is_known or state.fails or state.trail]


def candidates(
    records: Mapping[str, Mapping[str, Any]], spec: Spec, kind: Kind, found: JsonObject
) -> Iterator[Key]:
    """Yield the keys of one kind that the object may have."""
    metadata = found["metadata"]
    namespace = metadata.get("namespace") or ""
    group: Any = found
    for part in kind.group_by:
        group = (group or {}).get(part)
    group = group if kind.group_by else namespace
    name = f"{group}/{metadata['name']}" if group else metadata["name"]
    claim = (found.get("spec") or {}).get("claimRef") or {}
    tenant = f"@{claim['namespace']}" if claim.get("namespace") else ""
    uids = dict.fromkeys((metadata.get("uid") or "", "", tenant))
    drivers = [queue for queue, record in records.items() if queue and _serves(record, spec)]
    for driver in drivers if kind.has_driver else [""]:
        for uid in uids:
            yield Key(kind.name, driver, name, uid)


def _serves(record: Mapping[str, Any], spec: Spec) -> bool:
    return runs(record, spec.name, spec.part_of)


def _failed(state: KeyState) -> Cause | None:
    """Return a cause with the error from the last attempt if that attempt failed, else None."""
    error = queueing.last_error(state, None)
    again = queueing.next_try(state)
    if error is None or not (state.fails or state.due):
        return None
    return queueing.defect(state, error[0], again) or Cause(
        "failed", f"The last attempt failed: {error[0]}", again, state.due
    )
