"""The write-ahead side of an attempt, the same for CSI drivers and plug-ins (M-010, P-401).

Prepare, record the intent, call, record the volume: whatever dies on the way, somebody finishes.
What the request is made of and how it is sent is the subclass's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from workers.controllers.provisioner.intent import Intent
from workers.engine.steps import Step
from workers.errors import AttemptError, NamespaceFull, RecordTooLarge, State, TransientError

if TYPE_CHECKING:
    from workers.controllers.provisioner.intent import Request
    from workers.controllers.provisioner.work import ClaimWork
    from workers.kube.objects import JsonObject

_Prepared = TypeVar("_Prepared")
_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class RecordedAttempt(ABC, Generic[_Prepared, _Answer]):
    """One attempt for one claim, under the lease of its volume.

    Attributes:
        claim: live, or the remembered copy of a claim that is gone.
        storage_class: the original class, in-tree or not.
        intent: what an earlier attempt left; None for a first one. Updated as this one goes on.
        was_sent: the call began.
    """

    work: ClaimWork
    claim: JsonObject
    storage_class: JsonObject
    intent: Intent | None
    was_sent: bool = field(init=False, default=False)

    def run(self) -> JsonObject:
        """Returns the complete PV, already recorded in Redis.

        Raises:
            AttemptError: with the state that decides what follows.
            IgnoredError: the claim is not ours.
        """
        work = self.work
        try:
            prepared = self.prepare()
        except AttemptError as error:
            # An earlier call may still run, so its record must not go (D-008).
            if self.intent is not None and error.state is not State.NO_CHANGE:
                raise AttemptError(error.message, State.NO_CHANGE) from error
            raise
        self.record_intent(self.request_of(prepared))
        work.runtime.effects.reach(Step.CREATE_VOLUME, work.lease)
        self.was_sent = True
        answer = self.call(prepared)
        self.remember(self.current.answered())
        volume = self.accept(prepared, answer)
        try:
            work.runtime.effects.reach(Step.RECORD_VOLUME, work.lease)
            work.own.intents.created(work.lease.domain, self.current.record(), volume, work.lease)
        except TransientError:
            # Not ours any more, or Redis is away: somebody has to learn of the volume.
            self.remember_background()
            raise
        return volume

    @abstractmethod
    def prepare(self) -> _Prepared:
        """Everything that is checked and read before the call."""

    @abstractmethod
    def request_of(self, prepared: _Prepared) -> Request:
        """What the intent has to remember of it."""

    @abstractmethod
    def call(self, prepared: _Prepared) -> _Answer:
        """The call, its errors classified."""

    @abstractmethod
    def accept(self, prepared: _Prepared, answer: _Answer) -> JsonObject:
        """The complete PV, if the answer is usable."""

    @property
    def current(self) -> Intent:
        """The intent of this attempt, once it is recorded."""
        if self.intent is None:
            raise AssertionError("the intent is recorded before anything needs it")
        return self.intent

    def record_intent(self, request: Request) -> None:
        """Before the call: from now on the attempt is finished by somebody, whatever dies."""
        work = self.work
        known = self.intent if self.intent is not None and self.intent.request else None
        intent = Intent.begin(
            key=work.key.text,
            driver=work.driver.name,
            volume=work.volume,
            claim=known.claim if known else self.claim,  # what the request was made from
            storage_class=self.storage_class,
            request=request,
            previous=self.intent or work.record,  # of a failed one: what it overtook
            session=work.lease.session,
        )
        work.runtime.effects.reach(Step.RECORD_INTENT, work.lease)
        try:
            work.own.safekeeping.begin(work.lease, intent)
        except (NamespaceFull, RecordTooLarge) as error:  # the claim waits, and its events say why
            state = State.FINISHED if self.intent is None else State.NO_CHANGE
            raise AttemptError(str(error), state) from error
        self.remember(intent)

    def remember(self, intent: Intent) -> None:
        """From here on everybody in this pass goes by this record."""
        self.intent = self.work.record = intent

    def keep_copy(self, *, for_others: bool = False) -> None:
        """Keep the intent outside of Redis too; the call takes long, or its end is not known."""
        self.work.keep_copy(for_others=for_others)
        self.intent = self.work.record

    def remember_background(self) -> None:
        """The end is not known: the record says so, in Redis and in a ConfigMap (P-401)."""
        if self.intent is not None:
            self.remember(self.intent.in_background())
            self.keep_copy(for_others=True)
