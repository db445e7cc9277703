"""Declares the outcomes of a reconcile, which determine what the queue does next (P-400, L-050)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workers.queue.locks import Lock

ABORTED_TRIES: Final = 5
"""How many times a call that the driver answers with ABORTED ("another operation is pending") is
repeated at the first interval before it backs off (MA-014).
"""


class Action(Enum):
    """What the queue does with the key after a reconcile."""

    DONE = "done"  # forget the failure counter
    RETRY = "retry"  # count a failure, retry after the back-off
    WAIT = "wait"  # retry after a delay, without a back-off step
    BLOCKED = "blocked"  # retry when a lock is free, without a back-off step


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one reconcile.

    Attributes:
        action: what the queue does with the key.
        delay_seconds: for WAIT, the time until the retry; for RETRY, the minimum time until the
            retry, whatever the back-off.
        base_seconds: for RETRY, the initial back-off; None uses the settings.
        cap_seconds: for RETRY, the longest back-off; None uses the settings.
        finish_intent: for DONE, True to drop the volume's intent and unsaved PV in the same step.
        known: for DONE, the newest resourceVersion of the key's object that the reconcile read
            or wrote; events up to this version cause no further reconcile.
        memo: for RETRY, a string that is stored with the key and passed to the key's next
            reconcile.
        may_give_up: for RETRY, True if the driver's failure threshold applies (L-016).
        give_up_after: for RETRY, the number of earlier failures at which retrying stops; 0 for
            no limit.
        lock: for BLOCKED, the busy lock.
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


class Ended(Exception):  # noqa: N818 - the end of a reconcile, not an error
    """Ends a reconcile early: no work is left, or other work must be done first."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def done(reason: str = "", *, finish_intent: bool = False, known: str = "") -> Outcome:
    """Return the outcome for a key that needs no further work."""
    return Outcome(Action.DONE, reason=reason, finish_intent=finish_intent, known=known)


def retry(reason: str = "", *, not_before_seconds: float = 0.0, memo: str = "") -> Outcome:
    """Return the outcome for a failed attempt, which is retried after the key's back-off."""
    return Outcome(Action.RETRY, delay_seconds=not_before_seconds, memo=memo, reason=reason)


def wait(seconds: float, reason: str = "") -> Outcome:
    """Return the outcome for a key to be retried after `seconds`; no failure is counted."""
    return Outcome(Action.WAIT, delay_seconds=seconds, reason=reason)


def blocked(lock: Lock, reason: str = "") -> Outcome:
    """Return the outcome for a key that is waiting for a busy lock; no failure is counted."""
    return Outcome(Action.BLOCKED, lock=lock, reason=reason or f"{lock.name} is busy")
