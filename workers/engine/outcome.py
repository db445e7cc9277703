"""Declares the outcomes of a pass, which tell the queue what to do next (P-400, L-050)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workers.queue.locks import Lock

ABORTED_TRIES: Final = 5
"""A call that the driver answers with ABORTED ("another operation is pending") is repeated at the
first interval this many times before it backs off (MA-014)."""


class Action(Enum):
    """What the queue does with the key."""

    DONE = "done"  # forget the failure counter
    RETRY = "retry"  # count a failure, retry after the back-off
    WAIT = "wait"  # retry after a delay, without a back-off step
    BLOCKED = "blocked"  # retry when a lock is free, without a back-off step


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one pass.

    Attributes:
        action: what the queue does.
        delay_seconds: WAIT: time until the retry. RETRY: shortest time until the retry, whatever
            the back-off says.
        base_seconds, cap_seconds: RETRY: back-off of this key; None takes the settings'.
        finish_intent: DONE: also drop the volume's intent and unsaved PV, in the same step.
        known: DONE: newest resourceVersion of the key's object that the pass read or wrote; an
            event up to it causes no further pass.
        memo: RETRY: kept with the key and handed to its next pass.
        may_give_up: RETRY: whether the driver's threshold of failures counts (L-016).
        give_up_after: RETRY: stop retrying once this many failures were counted before; 0: never.
        lock: BLOCKED: the busy lock.
        reason: a short word for logs and metrics.
    """

    action: Action
    delay_seconds: float = 0.0
    base_seconds: float | None = None
    cap_seconds: float | None = None
    finish_intent: bool = False
    known: str = ""
    memo: str = ""
    may_give_up: bool = True
    give_up_after: int = 0
    lock: Lock | None = None
    reason: str = ""


class Ended(Exception):  # noqa: N818 - the end of a pass, no error
    """Ends a pass early with `outcome`: no work is left, or other work comes first."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def done(reason: str = "", *, finish_intent: bool = False, known: str = "") -> Outcome:
    """Return the outcome of a key without further work."""
    return Outcome(Action.DONE, reason=reason, finish_intent=finish_intent, known=known)


def retry(reason: str = "", *, not_before_seconds: float = 0.0, memo: str = "") -> Outcome:
    """Return the outcome of a failed attempt: it is retried after the key's back-off."""
    return Outcome(Action.RETRY, delay_seconds=not_before_seconds, memo=memo, reason=reason)


def wait(seconds: float, reason: str = "") -> Outcome:
    """Return the outcome of a key that is retried after `seconds`; no failure is counted."""
    return Outcome(Action.WAIT, delay_seconds=seconds, reason=reason)


def blocked(lock: Lock, reason: str = "") -> Outcome:
    """Return the outcome of a key that waits for a busy lock; no failure is counted."""
    return Outcome(Action.BLOCKED, lock=lock, reason=reason or f"{lock.name} is busy")
