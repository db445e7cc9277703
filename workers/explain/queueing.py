"""Causes that can be found in a key's queue state; they apply to all kinds of object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from workers.controllers import catalogue
from workers.drivers.operations import RPCS
from workers.explain.facts import Cause
from workers.explain.words import duration, moment, named
from workers.observability.trail import REFUSED, UNEXPECTED
from workers.queue.keys import KIND_CLAIMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.explain.serving import Served
    from workers.queue.inspect import KeyState, Note

# If its limits allow a key to run but no worker has taken it within this time, no thread is free.
UNTAKEN_SECONDS: Final = 3.0
# A call that has been running for longer than this is reported as slow.
LONG_SECONDS: Final = 2.0
# This must match the message in workers.translate.secrets.
_NOT_READ: Final = "error getting secret "
_FOLLOW_UP: Final = "Do nothing; ask again in a moment."


def unserved(name: str, known: Served, *, workers: int, is_driver: bool = True) -> Cause:
    """Return the cause if no worker runs the controller in question for a driver.

    `is_driver` is False if the driver itself may not exist.
    """
    return _unserved(name, known, workers, is_driver=is_driver).with_names(driver=name)


def _unserved(name: str, known: Served, workers: int, *, is_driver: bool) -> Cause:
    served = ", ".join(named(known.names)) or "none"
    if workers == 0:
        return Cause(
            "no-worker",
            "No csi-fleet worker is running, so no work is done for any driver.",
            "Start workers, or find out why they stopped: check their pods and run `csi-fleet "
            "status`.",
        )
    if name in known.others:
        return Cause(
            "not-served",
            f'Driver "{name}" has workers, but none of them runs the {known.controller} for the '
            "driver: their --controllers do not include it, or the driver does not support it.",
            f"Add {known.controller} to --controllers of the driver's workers, unless another "
            "program does this work. `csi-fleet doctor --csi-address=SOCKET` shows what the driver "
            f"supports. Drivers that the {known.controller} serves now: {served}.",
        )
    if is_driver:
        return Cause(
            "driver-not-registered",
            f'Driver "{name}" is not served: no worker is connected to it.',
            "If csi-fleet should serve the driver, check that the driver runs and that a worker "
            "has its socket (--csi-address or --drivers-file). Waiting work continues "
            f"automatically once a worker is connected. Drivers served now: {served}.",
        )
    return Cause(
        "unknown-provisioner",
        f'Provisioner "{name}" is unknown: no worker serves it, and no CSIDriver object has this '
        "name.",
        "Correct the provisioner of the storage class, or install that driver. Drivers served now: "
        f"{served}.",
    )


def paused(
    state: KeyState,
    pause: str | None = None,
    until: float = 0.0,
    *,
    paused_class: str = "",
) -> Cause | None:
    """Return the reason that a key is paused; None if it is not paused.

    A key is paused by an operator, by a Lease, by the pause of its class, or because the connection
    to its driver is lost.
    """
    driver = state.key.driver_name  # pauses do not depend on nodes or in-tree names
    for one in state.pauses:
        end = f" until {moment(one.until)}" if one.until else ""
        reason = one.reason or "no reason given"
        if one.kind == "operator":
            return Cause(
                "paused",
                f'An operator paused driver "{driver}"{end}: {reason}.',
                f"csi-fleet resume --driver={driver}",
                one.until,
                names={"driver": driver},
            )
        if one.kind == "driver":
            return Cause(
                "driver-lost",
                f'No worker is connected to driver "{driver}": {reason}.',
                "Check the driver's pod and log. Waiting work continues automatically when a "
                "worker is connected again; no attempt counts as failed in the meantime.",
            )
        return Cause(
            "lease-elsewhere",
            f'Another program holds the Lease of driver "{driver}": {reason}.',
            f"Remove the {catalogue.program_of(state.key.kind)} sidecar; work continues when its "
            "Lease expires.",
            one.until,
        )
    if pause is None:
        return None
    end = f" until {moment(until)}" if until else ""
    return Cause(
        "class-paused",
        f"An operator paused the storage class{end}: {pause or 'no reason given'}.",
        f"csi-fleet resume --class={paused_class}",
        until,
        names={"class": paused_class},
    )


def running(state: KeyState) -> Cause | None:
    """Return the cause "running" or "driver-slow" if a worker is reconciling the key, else None."""
    if state.lease is None:
        return None
    process, started = state.lease
    host = ":".join(process.split(":")[:2])
    seconds = state.now - started
    call = _call_of(state.key.kind)
    is_calling = bool(state.trail) and state.trail[-1].event == "intent"
    # CreateVolume is the only call whose start is recorded.
    if seconds > LONG_SECONDS and (is_calling or (call and state.key.kind != KIND_CLAIMS)):
        return Cause(
            "driver-slow",
            f"The driver has been working on {call} for {duration(seconds)} (worker {host})."
            if is_calling
            else f"Worker {host} has been working on this object for {duration(seconds)} and is "
            "most likely waiting for the driver.",
            "Wait, or check the driver's log. A call that takes longer than --timeout is retried.",
        )
    error = _standing_error(state.trail) if state.fails else None
    before = (
        f" This is attempt {state.fails + 1}; the last one failed: {error.detail}" if error else ""
    )
    return Cause(
        "running",
        f"Worker {host} has been working on this object for {duration(seconds)}.{before}",
        _FOLLOW_UP,
        is_problem=False,
    )


def _call_of(kind: str) -> str:
    """Return the first CSI call for a kind of key, or "" if there is none."""
    known = catalogue.kinds().get(kind)
    operations = known.operations if known is not None else ()
    return RPCS[operations[0]].rpartition("/")[2] if operations else ""


def queued(state: KeyState) -> Cause | None:
    """Return the cause if a key is waiting for its turn, a worker or another key's work."""
    if state.blocked_by:
        return Cause(
            "volume-busy",
            f"Another task is working on the same volume: {state.blocked_by}.",
            _FOLLOW_UP,
        )
    if not state.position:
        return None
    place = _place(state)
    if state.limits is None:
        return Cause(
            "no-limits",
            "No worker has reported how many calls the driver may serve at the same time, so no "
            f"work starts; {place}.",
            "Start a worker that serves the driver.",
        )
    if state.in_use >= state.limits.concurrency:
        return Cause(
            "limit-reached",
            f"The driver's limit is reached: {state.in_use} of {state.limits.concurrency} tasks "
            f"are running; {place}.",
            "Wait, or raise --worker-threads if the driver can serve more calls at the same time.",
        )
    if state.limits.rate_per_second > 0:
        return Cause(
            "rate-limited",
            f"The driver's rate of {state.limits.rate_per_second:g} per second is used up; "
            f"{place}.",
            "Wait, or raise the driver's rate limit in the drivers file.",
        )
    if state.in_use:
        place += f"; {state.in_use} others are running"
    waited = state.now - state.since if state.since else 0.0
    if state.position == 1 and waited >= UNTAKEN_SECONDS:
        return Cause(
            "no-free-worker",
            f"The object is next in the queue, but no worker thread is free; {place}.",
            "Run `csi-fleet pending` to see what the running tasks wait for, and `csi-fleet "
            "status` to see whether workers are gone. If the driver is healthy and all workers are "
            "busy, raise --workers or --concurrency.",
        )
    return Cause(
        "queued", f"The object is waiting for its turn; {place}.", _FOLLOW_UP, is_problem=False
    )


def _place(state: KeyState) -> str:
    order = "retries" if state.is_retry else "first attempts"
    waited = f", waiting {duration(state.now - state.since)}" if state.since else ""
    return f"position {state.position} of {state.waiting} among {order}{waited}"


def memo_of(state: KeyState | None) -> Mapping[str, Any]:
    """Return the reconcile state that was stored at the last failure; {} if there is none."""
    try:
        found = msgspec.json.decode(state.memo) if state is not None and state.memo else {}
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def last_error(state: KeyState | None, event: tuple[str, float] | None) -> tuple[str, float] | None:
    """Return the newer of two errors: the last unresolved one in the history, or the event's."""
    note = _standing_error(state.trail if state else ())
    if note is not None and (event is None or note.at >= event[1] - 1):
        return note.detail, note.at
    return event


def _standing_error(trail: Iterable[Note]) -> Note | None:
    """Return the newest error that no later reconcile has resolved."""
    found, is_held, is_refused = None, False, False
    for note in trail:
        if note.event == "taken":
            is_held = is_refused = False
        elif note.event == "error":
            # Within one reconcile, the API server's own message explains more than the errors that
            # wrap it.
            if note.detail.startswith(REFUSED) or not is_refused:
                found = note
            is_held, is_refused = True, is_refused or note.detail.startswith(REFUSED)
        elif note.event in {"waits", "blocked"}:
            is_held = True
        elif note.event in {"done", "released"} and not is_held:
            found = None
    return found


def defect(state: KeyState, message: str, again: str) -> Cause | None:
    """Return the cause if a bug or a missing permission made the work fail, else None."""
    if message.startswith(REFUSED):
        return Cause(
            "refused",
            f"The last attempt failed because {message}",
            "If a permission is missing, run `csi-fleet doctor` in the worker's pod to see which "
            f"one. {again}",
            state.due,
        )
    if not message.startswith(UNEXPECTED):
        return None
    return Cause(
        "internal-error",
        f"csi-fleet failed because of a bug: {message}. Nothing is lost.",
        "Report the bug with its traceback, which is in the worker's log under the key "
        f"{state.key.text}. {again}",
        state.due,
    )


def secret_names(message: str) -> tuple[dict[str, str], str]:
    """Return the names of the secret that could not be read, and the problem; ({}, "") for others.

    An object stores no reference to its secret, so the names are read from the error message.
    """
    if not message.startswith(_NOT_READ):
        return {}, ""
    place, _, problem = message.removeprefix(_NOT_READ).partition(": ")
    name, _, namespace = place.partition(" in namespace ")
    return {"secret": name, "secret_namespace": namespace}, problem


def next_try(state: KeyState) -> str:
    """Return a sentence about the next attempt, or "" if it is unknown."""
    if state.abandoned_at:
        return "It failed too often and is not retried automatically."
    if state.due:
        due = f"{moment(state.due)}, in {duration(max(0.0, state.due - state.now))}"
        return f"Attempt {state.fails + 1} starts at {due}."
    if state.position:
        return f"Attempt {state.fails + 1} is waiting for its turn."
    return ""
