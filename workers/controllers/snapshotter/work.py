"""The state and the common steps of one reconcile of a snapshot content: intents, calls, outcomes.

The intent is stored in the key's reconcile state. If a call is slow or its outcome is unknown, the
intent is also copied to a ConfigMap (`intent.py`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from csi_client.errors import CsiError, UndecodableAnswerError
from workers.controllers.snapshotter import intent as intents
from workers.controllers.snapshotter.content import LiveContent, has_result
from workers.controllers.snapshotter.decide import poll_seconds
from workers.controllers.snapshotter.intent import Intent
from workers.deadlines import NONE, Deadline
from workers.engine.live import Gone
from workers.engine.outcome import Action, Outcome, done, wait
from workers.errors import LeaseLost, RecordTooLarge, TransientError
from workers.queue.locks import Lock
from workers.translate.snapshot_objects import node_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.message import Message

AnswerT = TypeVar("AnswerT", bound="Message")


@dataclass
class ContentPass(LiveContent):
    """One reconcile of one snapshot content, under its lease.

    Attributes:
        intent: the intent of the content's attempt.
        polls: the number of polls so far, while the snapshot is not ready.
        asked: the request that each poll repeats, because a poll is a CreateSnapshot with the
            same name.
        overtaken: the deadline of earlier calls whose outcome is unknown, such as those of dead
            workers.
        looking: the deadline of this reconcile's CreateSnapshot, if the call is only a poll and has
            no intent.
        has_stale_copy: whether the copy of a finished attempt may still exist.
    """

    intent: Intent | None = None
    polls: int = 0
    asked: Intent | None = None
    overtaken: Deadline = NONE
    looking: Deadline = NONE
    has_stale_copy: bool = False

    def __post_init__(self) -> None:
        mark = self.lease.mark
        self.intent = Intent.read(mark.get("intent"))
        self.polls = int(mark.get("polls") or 0)
        self.asked = Intent.read(mark.get("asked"))
        self.overtaken = Deadline.read(mark.get("overtaken"))
        self.has_stale_copy = bool(mark.get("stale"))

    def has_begun(self) -> bool:
        """True if CreateSnapshot was called for this snapshot and the snapshot is not ready yet."""
        return self.intent is not None or self.asked is not None

    def is_of_our_node(self) -> bool:
        """True if this node may reconcile the content. Its label may have changed (SNS-001).

        A node always finishes an attempt that it began, because no other node has the intent.
        """
        node = self.driver.settings.node
        if not node.enabled or self.intent is not None:
            return True
        return node_of(self.item) == node.node_name

    def run(self, decide: Callable[[Self], Outcome]) -> Outcome:
        """Runs `decide`, then copies an open intent to a ConfigMap (M-010).

        Redis may lose the intent.
        """
        try:
            outcome = decide(self)
        except Exception:
            self.keep_copy()
            raise
        if outcome.action is not Action.DONE:
            self.keep_copy()
        return outcome

    def keep_copy(self) -> None:
        """Copies an open intent, unless another worker has the lease.

        That worker may have finished the attempt. A copy proves that a call is open, so no copy is
        written for an object that has its snapshot.
        """
        known = self.intent
        if known is None or not known.is_open or not self.lease.is_held():
            return
        if not has_result(self.item):
            self.copy_intent()

    def remember(self, intent: Intent | None, *, polls: int = 0) -> None:
        """Writes the key's reconcile state."""
        self.reach("record-intent")
        self.context.effects.mark(self.lease, self._mark(intent, polls))
        self.intent, self.polls = intent, polls

    def _mark(self, intent: Intent | None, polls: int) -> dict[str, Any]:
        parts = {
            "intent": intent.record() if intent is not None else None,
            "polls": polls,
            "asked": self.asked.record() if self.asked is not None and polls else None,
            "overtaken": self.lease.session.latest(self.overtaken, self.looking).data(),
            "stale": self.has_stale_copy,
        }
        return {name: part for name, part in parts.items() if part}

    def _save(self, intent: Intent | None, polls: int) -> None:
        """Writes the key's reconcile state if it has changed."""
        self.keep("record-intent", self._mark(intent, polls))
        self.intent, self.polls = intent, polls

    def begin_look(self) -> None:
        """Prepares a CreateSnapshot that only polls, for a snapshot that has no intent.

        The object's status already names such a snapshot. The reconcile state keeps the call's
        deadline, because a call whose outcome is unknown might recreate the snapshot after its
        deletion.
        """
        self.looking = self.deadline()
        self.forget(polls=self.polls)

    def end_look(self) -> None:
        """Saves the reconcile state after a poll that returned an error."""
        self._save(self.intent, self.polls)

    def record_answer(self, handle: str, members: Sequence[str]) -> None:
        """Records the driver's response before anything else is done with it (G8).

        Raises:
            LeaseLost: another worker has the lease; the intent has been copied for that worker.
        """
        if self.intent is not None:
            ended = replace(self.intent.as_ended(), is_copied=False)
            self.intent = replace(ended, handle=handle, members=tuple(members))
            try:
                self.remember(self.intent, polls=self.polls)
            except RecordTooLarge:  # a repeated call with the name returns the handle again
                self.remember(ended, polls=self.polls)
            except LeaseLost:  # the next worker must know it, even if the object is gone
                self.copy_intent()
                raise

    def deadline(self) -> Deadline:
        """Return the time by which a call that starts now must have ended."""
        return self.lease.session.deadline(self.settings.timeout_seconds)

    def ask(
        self, method: str, request: Message, answer_type: type[AnswerT], **options: Any
    ) -> AnswerT:
        """Calls the driver; if the driver responds, records that the call has ended.

        Raises:
            CsiError: the driver returned an error or did not respond.
            DriverAway: the driver is not connected.
        """
        seconds = self.settings.timeout_seconds
        try:
            answer = self.call(method, request, answer_type, timeout_seconds=seconds, **options)
        except CsiError as error:
            if not error.from_transport or isinstance(error, UndecodableAnswerError):
                self.ended()
            raise
        self.ended()
        return answer

    def ended(self) -> None:
        """Records that no call of this reconcile is in flight."""
        self.looking = NONE
        if self.intent is not None:
            self.intent = self.intent.as_ended()

    def overtaken_seconds(self) -> float:
        """Return how long a call without an intent may still recreate the snapshot."""
        return self.lease.session.seconds_left(self.overtaken, self.looking)

    def overtake(self, deadline: Deadline) -> None:
        """Remembers, before the next call, the deadline of a call whose outcome is unknown."""
        self.overtaken = self.lease.session.latest(self.overtaken, deadline)

    def hold_seconds(self) -> float:
        """Return how long any call may be in flight, including the intent's own call."""
        known = self.intent.deadline if self.intent is not None else NONE
        return self.lease.session.seconds_left(known, self.overtaken, self.looking)

    def copy_intent(self) -> None:
        """Copies the intent to a ConfigMap; called during the driver's call.

        Before the write, the reconcile state says that a copy may exist, because a copy that no
        state mentions would never be removed; after the write it says that the copy exists. The
        copy is written even without the lease or Redis, because the snapshot may exist whoever owns
        the content.
        """
        if self.intent is None:
            return
        known = self.intent = replace(self.intent, has_copy=True)
        with suppress(TransientError):
            self._save(known, self.polls)
        if known.is_copied:
            return
        with suppress(TransientError):
            self.reach("copy-intent")
        self.intent, copied = known, known.with_copy()
        kube, queue = self.context.effects.kube, self.context.queue
        if uid := intents.write_copy(kube, queue, self.own_namespace, self.key, copied):
            self.intent = copied = replace(copied, copy_uid=uid)
            with suppress(TransientError):
                self.remember(copied, polls=self.polls)

    def close(self) -> None:
        """Marks the intent as failed and drops its copy, because the call has ended.

        The call may have left a snapshot, so the intent itself is kept.
        """
        assert self.intent is not None  # the intent of the call that ended
        self.forget(kept=self.intent.as_failed())

    def forget(
        self, *, polls: int = 0, kept: Intent | None = None, has_strays: bool = False
    ) -> None:
        """Removes copy, intent and annotation, in this order, once no call is in progress.

        The order prevents a copy from outliving the state that points to it. An annotation without
        an intent means that Redis lost the intent, or that a reconcile died at this point, so there
        may be a copy. A copy that cannot be removed now is recorded in the reconcile state, and
        nothing waits for its removal.

        Args:
            polls: the number of polls to record.
            kept: the intent to keep, if any.
            has_strays: whether a worker that lost its lease may have written a copy that the state
                does not mention.
        """
        is_unknown = self.intent is None and bool(self.item) and self.is_announced()
        has_copy = self.intent is not None and self.intent.has_copy
        if is_unknown or has_copy or has_strays or self.has_stale_copy:
            self.reach("drop-copy")
            if self.intent is not None and self.intent.is_copied:  # the delete may go unanswered
                self.remember(replace(self.intent, is_copied=False), polls=self.polls)
            kube = self.context.effects.kube
            self.has_stale_copy = not intents.drop_copy(kube, self.own_namespace, self.key)
        if self.intent is not None:  # a call with unknown outcome may outlive its intent
            self.overtake(self.intent.deadline)
        self._save(kept, polls)
        if self.item:
            with suppress(Gone):
                self.clear_annotation()

    def settle(self, outcome: Outcome) -> Outcome:
        """Return `outcome`, or a new reconcile at once if the object can now be deleted.

        If the object's deletion event arrived during a call, no further event follows (SND-006).
        """
        is_over = outcome.action in {Action.DONE, Action.WAIT} and self.intent is None
        if not is_over or not self.item:
            return outcome
        if self.is_wanted_gone() and not self.is_announced():
            return wait(0, "it can be deleted now")
        return outcome


def held_back(work: ContentPass) -> Outcome | None:
    """Return a wait if a dead worker's call may still be in flight, else None.

    Such a call could recreate the snapshot. The returned outcome tells the engine to wait for it.
    """
    seconds = work.hold_seconds()
    return (
        wait(seconds, "the call of another process may still be running") if seconds > 0 else None
    )


def poll(work: ContentPass) -> Outcome:
    """Schedules the next poll; the interval grows with each poll, but not with errors (SND-001)."""
    polls = work.polls
    if work.intent is not None:
        work.asked = replace(work.intent.as_ended(), handle="", members=())
    work.forget(polls=polls + 1)
    return wait(poll_seconds(polls), "not ready")


def tidied(work: ContentPass, *, has_strays: bool) -> Outcome:
    """Ends a ready snapshot's attempt that an earlier reconcile left open."""
    work.forget(has_strays=has_strays)
    return held_back(work) or work.settle(done("ready"))


def snapshot_lock(work: ContentPass, handle: str) -> Lock:
    """Return the lock on a stored snapshot. Several contents may name the snapshot (SNQ-003)."""
    return Lock(f"{work.driver.name}#snapshot#{handle}")
