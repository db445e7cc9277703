"""One pass over one content: its records, its calls, its end.

What it knows of an attempt stands in the key's mark and, for calls that are slow or without an end,
in a ConfigMap (`intent.py`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from csi_client.errors import CsiError, UndecodableAnswerError
from workers.controllers.snapshotter import intent as intents
from workers.controllers.snapshotter.content import Gone, LiveContent, has_result
from workers.controllers.snapshotter.decide import poll_seconds
from workers.controllers.snapshotter.intent import Intent
from workers.deadlines import NONE, Deadline
from workers.engine.outcome import Action, Outcome, blocked, done, retry, wait
from workers.errors import LeaseLost, RecordTooLarge, TransientError
from workers.queue.locks import Lock
from workers.translate.snapshot_objects import node_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.message import Message

AnswerT = TypeVar("AnswerT", bound="Message")


@dataclass
class ContentPass(LiveContent):
    """One pass over one content, under its lease.

    Attributes:
        intent: what is known of its attempt.
        polls: looks at a snapshot that is not ready.
        asked: the request that each look repeats: it is a CreateSnapshot by the same name.
        overtaken: deadline of calls of dead processes that a later one overtook.
        looking: the same of this pass' CreateSnapshot that only looks: it has no record.
        has_stale_copy: a copy may be left of an attempt that is over.
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
        """Whether the driver was asked for this snapshot and has not made it ready yet."""
        return self.intent is not None or self.asked is not None

    def is_of_our_node(self) -> bool:
        """Whether the sidecar of this node may take it: its label may have changed (SNS-001).

        What this node began it brings to its end all the same: nobody else knows of it.
        """
        node = self.driver.settings.node
        if not node.enabled or self.intent is not None:
            return True
        return node_of(self.content) == node.node_name

    def run(self, decide: Callable[[Self], Outcome]) -> Outcome:
        """One pass; what leaves a call without its end leaves a copy (M-010).

        For Redis alone must not know of it.
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
        """Copy an attempt that is open; not that of another owner, who may have ended it.

        A copy proves that a call is open, so none is written for an object that has its snapshot.
        """
        known = self.intent
        if known is None or not known.is_open or not self.lease.is_held():
            return
        if not has_result(self.content):
            self.copy_intent()

    def remember(self, intent: Intent | None, *, polls: int = 0) -> None:
        """Write the key's mark."""
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
        """Write the key's mark if that changes it."""
        if self._mark(intent, polls) != self.lease.mark:
            self.remember(intent, polls=polls)
        self.intent, self.polls = intent, polls

    def begin_look(self) -> None:
        """Before a CreateSnapshot of a snapshot that was reported: it is the user's, so no record.

        The mark says until when the call may run, for one that nobody hears the end of may make the
        snapshot once more after its deletion.
        """
        self.looking = self.deadline()
        self.forget(polls=self.polls)

    def end_look(self) -> None:
        """It was answered with an error, whatever that was."""
        self._save(self.intent, self.polls)

    def record_answer(self, handle: str, members: Sequence[str]) -> None:
        """Record what the driver made before anything else is done with it (G8).

        Raises:
            LeaseLost: the content has another owner; there is a copy.
        """
        if self.intent is not None:
            ended = replace(self.intent.as_ended(), is_copied=False)
            self.intent = replace(ended, handle=handle, members=tuple(members))
            try:
                self.remember(self.intent, polls=self.polls)
            except RecordTooLarge:  # asking again by its name tells the handle once more
                self.remember(ended, polls=self.polls)
            except LeaseLost:  # whoever comes next must learn of it, object or not
                self.copy_intent()
                raise

    def deadline(self) -> Deadline:
        """When a call that begins now has surely ended."""
        return self.lease.session.deadline(self.settings.timeout_seconds)

    def call(
        self, method: str, request: Message, answer_type: type[AnswerT], **options: Any
    ) -> AnswerT:
        """Ask the driver; who got an answer knows that this call is over.

        Raises:
            CsiError: its answer, or none.
            DriverAway: it is not connected.
        """
        client, seconds = self.context.effects.client(self.driver), self.settings.timeout_seconds
        try:
            answer = client.call(method, request, answer_type, timeout_seconds=seconds, **options)
        except CsiError as error:
            if not error.from_transport or isinstance(error, UndecodableAnswerError):
                self.ended()
            raise
        self.ended()
        return answer

    def ended(self) -> None:
        """No call of this pass runs any more."""
        self.looking = NONE
        if self.intent is not None:
            self.intent = self.intent.as_ended()

    def overtaken_seconds(self) -> float:
        """How long a call without a record may still make the snapshot once more."""
        return self.lease.session.seconds_left(self.overtaken, self.looking)

    def overtake(self, deadline: Deadline) -> None:
        """A call without a known end is followed by another one."""
        self.overtaken = self.lease.session.latest(self.overtaken, deadline)

    def hold_seconds(self) -> float:
        """The same, with the call of the record itself."""
        known = self.intent.deadline if self.intent is not None else NONE
        return self.lease.session.seconds_left(known, self.overtaken, self.looking)

    def copy_intent(self) -> None:
        """Let a ConfigMap know of the attempt too; called while the driver works.

        The mark says first that there may be one: a copy nobody knows of would stay for ever. That
        there is one it says once it was written. Without the lease or Redis it is written all the
        same: what may exist is a fact, whoever owns the content by now.
        """
        if self.intent is None:
            return
        known = self.intent = replace(self.intent, has_copy=True)
        if self._mark(known, self.polls) != self.lease.mark:
            with suppress(TransientError):
                self.remember(known, polls=self.polls)
        if known.is_copied:
            return
        with suppress(TransientError):
            self.reach("copy-intent")
        self.intent, copied = known, known.with_copy()
        kube, queue = self.context.effects.kube, self.context.queue
        if uid := intents.write_copy(kube, queue, self.namespace, self.key, copied):
            self.intent = copied = replace(copied, copy_uid=uid)
            with suppress(TransientError):
                self.remember(copied, polls=self.polls)

    def close(self) -> None:
        """Nobody is at work any more, but a snapshot may be there: only the record stays."""
        assert self.intent is not None  # of the call that ended
        self.forget(kept=self.intent.as_failed())

    def forget(
        self, *, polls: int = 0, kept: Intent | None = None, has_strays: bool = False
    ) -> None:
        """Nothing is under way any more: the copy goes, then the record, then the annotation.

        In this order, so that a copy never outlives what points to it, and no record a snapshot
        that its object may tell of: such a one is the user's. An announcement without a record
        means that Redis lost it, or a pass that ended here; there may be a copy. One that may not
        be removed now is remembered, and holds nothing up.

        Args:
            polls: to be remembered.
            kept: what stays of the record.
            has_strays: a worker that lost its lease may have written a copy that nobody knows of.
        """
        is_unknown = self.intent is None and bool(self.content) and self.is_announced()
        has_copy = self.intent is not None and self.intent.has_copy
        if is_unknown or has_copy or has_strays or self.has_stale_copy:
            self.reach("drop-copy")
            if self.intent is not None and self.intent.is_copied:  # the answer may get lost
                self.remember(replace(self.intent, is_copied=False), polls=self.polls)
            kube = self.context.effects.kube
            self.has_stale_copy = not intents.drop_copy(kube, self.namespace, self.key)
        if self.intent is not None:  # a call that nobody heard the end of does not end with it
            self.overtake(self.intent.deadline)
        self._save(kept, polls)
        if self.content:
            with suppress(Gone):
                self.clear_annotation()

    def settle(self, outcome: Outcome) -> Outcome:
        """The pass' outcome, unless the object is to go and nothing holds it any more.

        Its deletion was told while a call ran, and no event tells it again (SND-006).
        """
        is_over = outcome.action in {Action.DONE, Action.WAIT} and self.intent is None
        if not is_over or not self.content:
            return outcome
        if self.is_wanted_gone() and not self.is_announced():
            return wait(0, "it can be deleted now")
        return outcome

    def failed(self, reason: str, *, not_before_seconds: float = 0.0) -> Outcome:
        """Again after the back-off of this driver's settings (SNA-008)."""
        return replace(
            retry(reason, not_before_seconds=not_before_seconds),
            base_seconds=self.settings.retry_start_seconds,
            cap_seconds=self.settings.retry_max_seconds,
        )


def held_back(work: ContentPass) -> Outcome | None:
    """Nothing is deleted while a call of a dead process may still make it once more."""
    seconds = work.hold_seconds()
    return wait(seconds, "the call of another process may still run") if seconds > 0 else None


def poll(work: ContentPass) -> Outcome:
    """Not ready: look again after growing times that no error makes longer (SND-001)."""
    polls = work.polls
    if work.intent is not None:
        work.asked = replace(work.intent.as_ended(), handle="", members=())
    work.forget(polls=polls + 1)
    return wait(poll_seconds(polls), "not ready")


def tidied(work: ContentPass, *, has_strays: bool) -> Outcome:
    """A snapshot that is ready, and whose attempt another pass did not end."""
    work.forget(has_strays=has_strays)
    return held_back(work) or work.settle(done("ready"))


def busy(lock: Lock) -> Outcome:
    """Somebody else is at it: the key comes back when the lock is free."""
    return blocked(lock, f"{lock.name} is busy")


def snapshot_lock(work: ContentPass, handle: str) -> Lock:
    """One snapshot of the storage; several contents may name it (SNQ-003)."""
    return Lock(f"{work.driver.name}#snapshot#{handle}")
