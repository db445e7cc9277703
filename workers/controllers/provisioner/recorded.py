"""Records an attempt before its call, for CSI drivers and plug-ins alike (M-010, P-401).

An attempt prepares the request, records the intent, makes the call and records the volume. If the
worker dies in between, another worker finishes the attempt. A subclass builds and sends the
request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from workers.controllers.provisioner.intent import Intent
from workers.engine.steps import Step
from workers.errors import AttemptError, NamespaceFull, RecordTooLarge, State, TransientError
from workers.translate.claim_metadata import with_labels

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
        claim: the live claim, or the intent's copy of a claim that is gone.
        storage_class: the original class, in-tree or not.
        intent: this attempt's intent once it has been recorded; before that, an earlier attempt's,
            or None if there was none.
        was_sent: whether the call has begun.
    """

    work: ClaimWork
    claim: JsonObject
    storage_class: JsonObject
    intent: Intent | None
    was_sent: bool = field(init=False, default=False)

    def run(self) -> JsonObject:
        """Return the complete PV, which is already recorded in Redis.

        Raises:
            AttemptError: the attempt failed; the error's state decides what happens next.
            IgnoredError: the claim is not for this driver or node.
        """
        work = self.work
        try:
            prepared = self.prepare()
        except AttemptError as error:
            # An earlier call may still be running, so its record must be kept (D-008).
            if self.intent is not None and error.state is not State.NO_CHANGE:
                raise AttemptError(error.message, State.NO_CHANGE) from error
            raise
        self.record_intent(self.request_of(prepared))
        work.runtime.effects.reach(Step.CREATE_VOLUME, work.lease)
        self.was_sent = True
        answer = self.call(prepared)
        self.remember(self.current.answered())
        volume = with_labels(
            self.accept(prepared, answer),
            self.claim,
            work.driver.settings.provision.claim_labels_to_pv,
        )
        try:
            work.runtime.effects.reach(Step.RECORD_VOLUME, work.lease)
            work.own.intents.created(work.lease.domain, self.current.record(), volume, work.lease)
        except TransientError:
            # The lease has been lost or Redis is unavailable; the next worker finds the record of
            # the attempt in the ConfigMap.
            self.remember_background()
            raise
        return volume

    @abstractmethod
    def prepare(self) -> _Prepared:
        """Reads and checks everything that the call needs."""

    @abstractmethod
    def request_of(self, prepared: _Prepared) -> Request:
        """Return the part of the request that the intent has to record."""

    @abstractmethod
    def call(self, prepared: _Prepared) -> _Answer:
        """Makes the call; raises its errors as AttemptError with a state."""

    @abstractmethod
    def accept(self, prepared: _Prepared, answer: _Answer) -> JsonObject:
        """Checks the response and returns the complete PV."""

    @property
    def current(self) -> Intent:
        """The intent of this attempt; available once it has been recorded."""
        if self.intent is None:
            raise AssertionError("the intent is recorded before anything needs it")
        return self.intent

    def record_intent(self, request: Request) -> None:
        """Records the intent before the call, so that another worker can finish the attempt."""
        work = self.work
        known = self.intent if self.intent is not None and self.intent.request else None
        intent = Intent.begin(
            key=work.key.text,
            driver=work.driver.name,
            volume=work.volume,
            claim=known.claim if known else self.claim,  # the request was built from it
            storage_class=self.storage_class,
            request=request,
            previous=self.intent or work.record,  # it contains the overtaken calls
            session=work.lease.session,
        )
        work.runtime.effects.reach(Step.RECORD_INTENT, work.lease)
        try:
            work.own.safekeeping.begin(work.lease, intent)
        except (NamespaceFull, RecordTooLarge) as error:  # the claim must wait; its events say why
            state = State.FINISHED if self.intent is None else State.NO_CHANGE
            raise AttemptError(str(error), state) from error
        self.remember(intent)

    def remember(self, intent: Intent) -> None:
        """Makes `intent` the current record of the attempt and of the reconcile."""
        self.intent = self.work.record = intent

    def keep_copy(self, *, for_others: bool = False) -> None:
        """Copies the intent to a ConfigMap, because the call is slow or its outcome is unknown."""
        self.work.keep_copy(for_others=for_others)
        self.intent = self.work.record

    def remember_background(self) -> None:
        """Records in Redis and a ConfigMap that the outcome of the call is unknown (P-401)."""
        if self.intent is not None:
            self.remember(self.intent.in_background())
            self.keep_copy(for_others=True)
