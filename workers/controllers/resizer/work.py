"""The objects, reconcile state, events and error messages that both steps of a reconcile share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from workers.controllers.resizer import request
from workers.controllers.resizer.claim import read_claim, read_volume
from workers.controllers.resizer.marks import Marks
from workers.controllers.resizer.words import event_source
from workers.engine.outcome import Outcome, done, retry
from workers.kube.errors import (
    NotFoundError,
    RefusedError,
)
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.translate import secrets as secret_rules

if TYPE_CHECKING:
    from workers.controllers.resizer.claim import ClaimView, VolumeView
    from workers.controllers.resizer.settings import ResizerSettings
    from workers.controllers.resizer.writing import Writer
    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.errors import ApiError
    from workers.kube.objects import JsonObject
    from workers.queue.leases import Lease

_log = get_logger(__name__)

# The effects, in the order in which a full reconcile with both steps performs them.
DROP_PRE_RESIZE: Final = "drop-pre-resize"
MARK_STARTED: Final = "mark-started"
RECORD_CALL: Final = "record-call"
EXPAND_VOLUME: Final = "expand-volume"
MODIFY_VOLUME: Final = "modify-volume"
SAVE_SIZE: Final = "save-size"
SAVE_CLASS: Final = "save-class"
RECORD_EXPANSION: Final = "record-expansion"
RECORD_MODIFICATION: Final = "record-modification"
CANCEL_MODIFICATION: Final = "cancel-modification"
KEEP_MARK: Final = "keep-mark"


@dataclass(slots=True)
class Work:
    """One reconcile of one claim.

    Attributes:
        marks: the reconcile state of the claim, which `keep` stores.
    """

    context: Context
    driver: Driver
    settings: ResizerSettings
    lease: Lease
    writer: Writer
    marks: Marks
    _said: list[tuple[str, str]] = field(default_factory=list)
    _is_failing: bool = False

    @property
    def claim(self) -> ClaimView:
        """The claim as it was last read or written."""
        return read_claim(self.writer.item)

    @property
    def volume(self) -> VolumeView:
        """The volume as it was last read or written."""
        return read_volume(self.writer.volume)

    @property
    def now(self) -> float:
        """The current time in seconds, by the queue's clock."""
        return self.lease.session.now()

    @property
    def overtaken_seconds(self) -> float:
        """How long a dead worker's modification may stay in flight after a later call has ended."""
        return self.lease.session.seconds_left(self.marks.overtaken())

    def say(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Record an event on the claim."""
        self.context.effects.event(
            self.writer.item,
            "Warning" if is_warning else "Normal",
            reason,
            message,
            component=event_source(self.driver.name),
        )

    def say_once(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Record an event, unless the failing claim has recently had the same one (MR-050)."""
        if not self.marks.has_said(reason, message, self.now):
            self.say(reason, message, is_warning=is_warning)
            self._said.append((reason, message))

    def complain(self, reason: str, message: str) -> None:
        """Report a failure to the user."""
        self._is_failing = True
        trail.note("error", message)
        _log.warning("attempt failed", err=message)
        self.say_once(reason, message, is_warning=True)

    def keep(self, step: str = KEEP_MARK) -> None:
        """Store the state if it has changed.

        The last `keep` of a reconcile also stores the events if the claim is failing, and otherwise
        drops all stored events.
        """
        if step == KEEP_MARK:
            marks = self.marks if self._is_failing else replace(self.marks, said=())
            for reason, message in self._said if self._is_failing else ():
                marks = marks.saying(reason, message, self.now)
            self.marks = marks
        self.writer.keep(step, self.marks.data())

    def end(self, error: ApiError, reason: str) -> Outcome:
        """Return the outcome after a failed write; drop the state if the claim was deleted."""
        if not isinstance(error, NotFoundError):
            return retry(reason)
        self.marks, self._is_failing = Marks(), False
        return done("claim is gone")

    def secrets(self, volume: JsonObject, *, modify: bool = False) -> dict[str, str]:
        """Read the secret data for a call (R-040, R-104).

        Raises:
            AttemptError: NO_CHANGE; the secret cannot be read.
        """
        find = request.modify_secret if modify else request.expand_secret
        wanted = find(volume)
        if wanted is None:
            return {}
        try:
            found = self.context.kube.get_secret(wanted.namespace, wanted.name)
        except RefusedError as error:
            raise secret_rules.read_failed(wanted, error) from error
        return secret_rules.decode(found, wanted)

    def timeout_seconds(self, operation: str) -> float:
        """Return the timeout of a call for this claim."""
        named = self.driver.timeout_seconds(operation, self.claim.storage_class)
        return self.settings.timeout_seconds if named is None else named


def patch_failed(claim: ClaimView, error: ApiError) -> str:
    """Return csi-resizer's message for a refused status write, with its double space (R-035)."""
    return f"can't patch status of  PVC {claim.path} with {error}"
