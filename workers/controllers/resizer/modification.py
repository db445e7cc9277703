"""The modify step of one reconcile: from the class to the recorded result (R-102 to R-113)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.controllers.resizer import editing, modifying, request, words
from workers.controllers.resizer import work as effects
from workers.controllers.resizer.claim import read_claim
from workers.controllers.resizer.marks import Call, digest_of
from workers.controllers.resizer.results import Result, modify_result
from workers.controllers.resizer.words import ModifyState
from workers.controllers.resizer.work import Work, patch_failed
from workers.deadlines import NONE
from workers.engine.outcome import ABORTED_TRIES, Action, Outcome, done, retry, wait
from workers.errors import AttemptError
from workers.kube.errors import NotFoundError, RefusedError
from workers.observability import trail
from workers.translate.fields import text, text_map

if TYPE_CHECKING:
    from workers.controllers.resizer.editing import ClaimEdit
    from workers.controllers.resizer.modifying import Modify
    from workers.kube.objects import JsonObject

_INTERNAL = errors.code_name(errors.INTERNAL)
_INVALID = errors.code_name(errors.INVALID_ARGUMENT)


@dataclass(slots=True)
class ModifyStep:
    """Applies one VolumeAttributesClass to one volume."""

    work: Work
    plan: Modify
    name: str = effects.MODIFY_VOLUME
    operation: str = "modify"
    _parameters: dict[str, str] = field(default_factory=dict)
    _refusal: str = ""
    _is_hopeless: bool = False
    _request: csi.ControllerModifyVolumeRequest | None = None

    @property
    def target(self) -> tuple[str, str]:
        """The operation and the class, used to compare plans."""
        return (self.operation, self.plan.class_name)

    def read_class(self) -> None:
        """Read the class live, before anything about it is written."""
        work, name = self.work, self.plan.class_name
        try:
            found = work.context.kube.get_attributes_class(name)
        except NotFoundError:
            kept = work.marks.modification_of(name)
            if self.plan.is_again and kept is not None and kept.parameters is not None:
                self._parameters = dict(kept.parameters)  # the deleted class's parameters (DR-027)
            else:
                self._refusal = f'VAC "{name}" does not exist.'
            return
        driver = text(found, "driverName")
        if driver != work.driver.name:
            self._refusal = (
                f'VAC "{name}" is for CSI driver {driver}, but the volume belongs to CSI driver '
                f"{work.driver.name}"
            )
            self._is_hopeless = True
            return
        self._parameters = text_map(found, "parameters")

    def begin(self, edit: ClaimEdit) -> None:
        """Add this step's changes to the reconcile's first write."""
        if self.plan.is_again:
            return
        if self._is_hopeless:
            # The class is treated as if the driver had returned INVALID_ARGUMENT, because
            # Kubernetes's own tests expect this for another driver's class.
            editing.mark_modify_failed(
                edit,
                self.plan.class_name,
                is_infeasible=True,
                may_run=False,
                reason=_INVALID,
                message=self._refusal,
            )
        elif self._refusal:
            editing.mark_modify_pending(edit)
        else:
            editing.mark_modifying(edit, self.plan.class_name)

    def prepare(self) -> Outcome | None:
        """Prepare the call; return an outcome if no call should be made."""
        work = self.work
        if self._refusal:
            work.complain(words.REASON_MODIFY_FAILED, self._refusal)
            if self._is_hopeless and not self.plan.is_again:
                self._remember(Result.INFEASIBLE)
                longest = work.settings.retry_interval_max_seconds
                return retry("infeasible", not_before_seconds=longest)
            # When the class is created, the claim is queued again (DR-018).
            return retry("no class") if self.plan.is_again else done("waits for the class")
        if held := self._held_seconds():
            return wait(held, "a call for the class's earlier parameters may still be running")
        claim = work.claim
        if not self.plan.is_again:
            message = f"external resizer is modifying volume {claim.name} with vac {self._class}"
            work.say_once(words.REASON_MODIFY, message)
        parameters = modifying.parameters(
            self._parameters,
            claim,
            work.volume,
            with_metadata=work.settings.extra_modify_metadata,
        )
        volume = work.writer.volume
        try:
            secrets = work.secrets(volume, modify=True)
        except AttemptError as error:
            return self._unsent(error.message)
        self._request = request.modify_request(volume, parameters, secrets)
        return None

    def _held_seconds(self) -> float:
        """Return for how many seconds a call with the class's earlier parameters may be running."""
        known = self.work.marks.modification_of(self._class)
        if known is None or known.digest in (0, digest_of(self._parameters)):
            return 0.0
        return self.work.lease.session.seconds_left(*known.deadlines)

    def record_call(self) -> None:
        """Record, before the call, that a call may be in flight, whatever the last result (MR-010).

        The parameters are stored because the class may be deleted before the outcome is known
        (DR-027). The deadline is stored because, if this call ended late, it would undo a class
        that was applied in the meantime.
        """
        work, session = self.work, self.work.lease.session
        known = work.marks.modification_of(self._class)
        call = Call(
            self._class,
            Result.UNCERTAIN,
            work.now,
            parameters=self._parameters,
            digest=digest_of(self._parameters),
            deadline=session.deadline(work.timeout_seconds(self.operation)),
            overtaken=session.latest(*known.deadlines) if known is not None else NONE,
        )
        work.marks = replace(work.marks, modify=call)

    def answer(self) -> csi.ControllerModifyVolumeResponse | CsiError:
        """Call the driver; return its response or its error."""
        assert self._request is not None
        trail.note("rpc", f"ControllerModifyVolume {self._class}")
        try:
            return self.work.context.effects.client(self.work.driver).call(
                "Controller/ControllerModifyVolume",
                self._request,
                csi.ControllerModifyVolumeResponse,
                timeout_seconds=self.work.timeout_seconds(self.operation),
            )
        except CsiError as error:
            return error

    def record(self, answer: Any) -> Outcome:
        """Record the result of the call."""
        if isinstance(answer, CsiError):
            return self._failed(answer)
        return self._succeeded()

    @property
    def _class(self) -> str:
        return self.plan.class_name

    # Failures.

    def _unsent(self, message: str) -> Outcome:
        """Handle a failure before the call; csi-resizer does not report such a failure (DR-020)."""
        work = self.work
        if not self.plan.is_again and work.marks.modification_of(self._class) is None:
            self._remember(Result.UNSENT)
        problem = self._record_failure(Result.UNCERTAIN, _INTERNAL, message)
        work.complain(words.REASON_MODIFY_FAILED, problem or message)
        return retry("not sent")

    def _failed(self, error: CsiError) -> Outcome:
        """Record and report a failed call; return a retry with back-off (R-111)."""
        work, result = self.work, modify_result(error)
        problem = self._record_failure(result, error.code_name, error.details)
        self._remember(result, is_heard=not error.from_transport)
        suffix = f". Still modifying to VAC {self._class}" if result.may_run else ""
        work.complain(words.REASON_MODIFY_FAILED, problem or f"{error}{suffix}")
        if result is Result.INFEASIBLE:
            return retry("infeasible", not_before_seconds=work.settings.retry_interval_max_seconds)
        if error.code == errors.ABORTED and work.lease.fails < ABORTED_TRIES:
            cap = work.settings.retry_interval_start_seconds
            return Outcome(Action.RETRY, cap_seconds=cap, reason="aborted")
        return retry(str(result))

    def _remember(self, result: Result, *, is_heard: bool = True) -> None:
        """Store the call's result; keep an overtaken call until it must have ended (MR-010).

        Args:
            result: the result of the last call.
            is_heard: whether the driver itself responded; the call's deadline then no longer
                matters.
        """
        work = self.work
        known = work.marks.modification_of(self._class)
        call = Call(
            self._class,
            result,
            work.now,
            parameters=self._parameters if result.may_run else None,
            deadline=NONE if is_heard or known is None else known.deadline,
            overtaken=known.overtaken if known is not None else NONE,
        )
        is_over = result is Result.OK and not work.overtaken_seconds
        work.marks = replace(work.marks, modify=None if is_over else call)

    def _record_failure(self, result: Result, reason: str, message: str) -> str:
        """Write the state and conditions; return an error text if that write fails, else ""."""

        def change(edit: ClaimEdit) -> bool:
            if not self._still_counts(edit):
                return False
            editing.mark_modify_failed(
                edit,
                self._class,
                is_infeasible=result is Result.INFEASIBLE,
                may_run=result.may_run,
                reason=reason,
                message=message,
            )
            return True

        work = self.work
        try:
            work.writer.edit_claim(effects.RECORD_MODIFICATION, change)
        except RefusedError as error:
            claim = work.claim
            return (
                f'mark PVC "{claim.name}" as modify volume failed, errored with: '
                f"{patch_failed(claim, error)}"
            )
        return ""

    # Success.

    def _succeeded(self) -> Outcome:
        """Save the class on the volume first, then on the claim (R-110)."""
        work, name = self.work, self._class

        def save(volume: JsonObject) -> JsonObject | None:
            if text(volume, "spec", "volumeAttributesClassName") == name:
                return None
            return {"spec": {"volumeAttributesClassName": name}}

        def change(edit: ClaimEdit) -> bool:
            if not self._still_counts(edit):
                return False
            editing.mark_modified(edit, name)
            return True

        try:
            work.writer.edit_volume(effects.SAVE_CLASS, save)
            work.writer.edit_claim(effects.RECORD_MODIFICATION, change)
        except RefusedError as error:
            if not isinstance(error, NotFoundError):  # no event for a deleted claim
                message = f"cannot get error status from modify volume err: {error}"
                work.complain(words.REASON_MODIFY_FAILED, message)
            return work.end(error, "not recorded")
        self._remember(Result.OK)
        claim = work.claim
        message = f"external resizer modified volume {claim.name} with vac {name} successfully"
        work.say(words.REASON_MODIFIED, message)
        return done("modified")

    def _still_counts(self, edit: ClaimEdit) -> bool:
        """Return True if the claim is still waiting for the result of this class (MR-040)."""
        claim = read_claim(edit.claim)
        return claim.modify_state == ModifyState.IN_PROGRESS and claim.modify_target == self._class
