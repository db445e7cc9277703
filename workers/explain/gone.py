"""Explains an object that no longer exists, from the data that Redis still has about it.

Work on a deleted claim continues until its volume is deleted or saved. Finished work leaves a
history for an hour. Keys are found by the object's name, because its UID is no longer known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from workers.explain import queueing
from workers.explain.facts import Cause
from workers.explain.generic import Explained
from workers.explain.serving import Served, runs
from workers.explain.stranded import is_stranded
from workers.explain.words import duration
from workers.queue.inspect import KeyState, keys_of_object, read_keys
from workers.queue.intents import IntentStore

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.nouns import Noun

# The events that end a reconcile in the history.
_ENDS: Final = frozenset({"done", "end"})


def explain(tools: Tools, noun: Noun, namespace: str, name: str) -> Explained | None:
    """Explain the work on an object that does not exist; None if Redis has no data about it.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    state = last_state(tools, noun, namespace, name)
    if state is None:
        return None
    shown = f"{namespace}/{name}" if namespace else name
    what = f"{noun.word} {shown}"
    if is_open(state):
        found = still_open(tools, noun, state)
        volume = str((state.intent or {}).get("volume") or "")
        about = f" on volume {volume}" if volume else ""
        text = f"{what} was deleted, but csi-fleet is still working{about}. {found.text}"
        return Explained(replace(found, text=text), state)
    last = state.trail[-1]
    said = next((one.detail for one in reversed(state.trail) if one.event in _ENDS), "")
    result = f" with the result: {said}" if said else ""
    return Explained(
        Cause(
            "gone",
            f"{what} no longer exists. csi-fleet finished its work on it "
            f"{duration(max(0.0, state.now - last.at))} ago{result}.",
            is_problem=False,
        ),
        state,
    )


def last_state(tools: Tools, noun: Noun, namespace: str, name: str) -> KeyState | None:
    """Return the state of the latest work on an object, even a deleted one; None if there is none.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    kinds = {kind.name for _, kind in noun.kinds}
    shown = f"{namespace}/{name}" if namespace else name
    keys = dict.fromkeys(keys_of_object(tools.redis, kinds, shown))
    for key in IntentStore(tools.redis).keys_of(shown):
        if key.kind in kinds:
            keys[key] = None
    states = read_keys(tools.redis, list(keys)) if keys else []
    states = [one for one in states if is_open(one) or one.trail]
    if not states:
        return None
    return max(states, key=lambda one: (is_open(one), one.trail[-1].at if one.trail else 0.0))


def is_open(state: KeyState) -> bool:
    """Return True if work on the key is still to be done."""
    return bool(state.is_known or state.fails or state.intent or state.unsaved)


def still_open(tools: Tools, noun: Noun, state: KeyState) -> Cause:
    """Return why the work on the key is still open."""
    spec = next(spec for spec, kind in noun.kinds if kind.name == state.key.kind)
    if state.intent is not None and is_stranded(state.intent):
        volume = state.intent.get("volume") or state.key.record_name
        return Cause(
            "stranded",
            "csi-fleet cannot finish the attempt without you: "
            f"{state.intent.get('problem') or 'the reason is unknown'}",
            f"Recreate what is missing, then run `csi-fleet retry pvc {state.key.object}`. Or look "
            f"for the volume in the storage backend, then run `csi-fleet audit --forget={volume}`.",
            names=queueing.secret_names(str(state.intent.get("problem") or ""))[0],
        )
    if found := queueing.running(state) or queueing.paused(state):
        return found
    records = tools.registry.alive()
    is_served = any(
        runs(one, spec.name, spec.part_of) and name == state.key.driver
        for name, one in records.items()
    )
    if state.key.driver and not is_served:
        served = Served.by(records, spec.name)
        return queueing.unserved(
            state.key.driver_name, served, workers=len(tools.presence.workers())
        )
    error = queueing.last_error(state, None)
    again = queueing.next_try(state)
    if error is not None:
        return queueing.defect(state, error[0], again) or Cause(
            "deleted-failing",
            f"The last attempt failed: {error[0]}",
            "If the attempt needs an object that was deleted with it, such as a Secret, create "
            f"that object again. {again}",
            state.due,
        )
    return queueing.queued(state) or Cause(
        "deleting", f"The work has not finished. {again}".rstrip(), is_problem=False
    )
