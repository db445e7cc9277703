"""The expand step of a reconcile: from the target size to the recorded result (R-035 to R-060)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.controllers.resizer import editing, offline, request, words
from workers.controllers.resizer import work as effects
from workers.controllers.resizer.claim import read_claim
from workers.controllers.resizer.decide import Resizer
from workers.controllers.resizer.marks import Call
from workers.controllers.resizer.results import Result, expand_result, is_in_use
from workers.controllers.resizer.words import Part
from workers.controllers.resizer.work import Work, patch_failed
from workers.engine.outcome import ABORTED_TRIES, Action, Outcome, done, retry
from workers.errors import AttemptError
from workers.kube.errors import NotFoundError, RefusedError
from workers.migration.plugins import in_tree_source
from workers.observability import trail
from workers.observability.requests import about_volume
from workers.translate.quantity import canonical

if TYPE_CHECKING:
    from workers.controllers.resizer.decide import Expand
    from workers.controllers.resizer.editing import ClaimEdit
    from workers.kube.objects import JsonObject

# How often a waiting claim checks whether its volume is in use. The check is repeated because no
# event reports that a pod without an attachment has ended.
IN_USE_SECONDS: Final = 15.0


@dataclass(slots=True)
class ExpandStep:
    """Expands one volume to one size.

    Attributes:
        part: the state of the claim's expansion when the step was planned.
    """

    work: Work
    plan: Expand
    resizer: Resizer
    part: str
    name: str = effects.EXPAND_VOLUME
    operation: str = "expand"
    _request: csi.ControllerExpandVolumeRequest | None = None
    _exhausted: int = 0

    @property
    def target(self) -> tuple[str, str]:
        """The operation and the size, used to compare plans."""
        return (self.operation, str(self.plan.target.size_bytes))

    def begin(self, edit: ClaimEdit) -> None:
        """Add this step's changes to the reconcile's first write."""
        editing.mark_resizing(edit, self.plan, self.part)

    def prepare(self) -> Outcome | None:
        """Prepare the call; return an outcome if no call should be made (R-036, R-040)."""
        work = self.work
        if work.settings.handles_in_use and work.marks.in_use:
            claim = work.claim
            if offline.is_in_use(work.context.kube, claim.namespace, claim.name, claim.volume_name):
                work.complain(words.REASON_RESIZE_FAILED, self._in_use())
                return Outcome(Action.RETRY, cap_seconds=IN_USE_SECONDS, reason="in use")
        message = f"External resizer is resizing volume {work.volume.name}"
        work.say_once(words.REASON_RESIZING, message)
        try:
            self._request = self._make_request()
        except AttemptError as error:
            return self._unsent(error.message)
        return None

    def record_call(self) -> None:
        """Clear the recorded result just before the call (MR-010).

        If no result is recorded, a call for the size in the claim may be in flight. The number of
        RESOURCE_EXHAUSTED responses is cleared too, because it proves nothing once the outcome of a
        later call is unknown (MR-031).
        """
        marks = self.work.marks
        call = marks.expansion_of(self.plan.target.size_bytes)
        if call is not None:
            self._exhausted = call.exhausted
            self.work.marks = replace(marks, expand=None)

    def answer(self) -> csi.ControllerExpandVolumeResponse | CsiError:
        """Call the driver; return its response or its error."""
        if self._request is None:  # node-only expansion; only the node knows its limit (DR-031)
            return csi.ControllerExpandVolumeResponse(
                capacity_bytes=self.plan.target.size_bytes, node_expansion_required=True
            )
        trail.note("rpc", f"ControllerExpandVolume {self.plan.target.text}")
        is_migrated = in_tree_source(self.work.writer.volume) is not None
        try:
            with about_volume(is_migrated=is_migrated):  # sets a label of the metrics
                return self.work.context.effects.client(self.work.driver).call(
                    "Controller/ControllerExpandVolume",
                    self._request,
                    csi.ControllerExpandVolumeResponse,
                    timeout_seconds=self.work.timeout_seconds(self.operation),
                )
        except CsiError as error:
            return error

    def record(self, answer: Any) -> Outcome:
        """Record the result of the call."""
        if isinstance(answer, CsiError):
            return self._failed(str(answer), expand_result(answer), answer)
        size_bytes, wanted = answer.capacity_bytes, self.plan.target.size_bytes
        if size_bytes == 0:
            size_bytes = wanted  # the response has no size (DR-005)
            message = f"the driver returned no size; {canonical(wanted)} is assumed as the new size"
            self.work.say(words.REASON_RESIZED, message, is_warning=True)
        if size_bytes < wanted:
            text = f"the driver returned a size of {size_bytes} bytes, but {wanted} were requested"
            return self._failed(text, Result.FINAL)
        return self._succeeded(size_bytes, node_part=answer.node_expansion_required)

    # Before the call.

    def _make_request(self) -> csi.ControllerExpandVolumeRequest | None:
        work = self.work
        if self.resizer is Resizer.TRIVIAL:
            return None
        volume = request.csi_volume(work.writer.volume)
        return request.expand_request(
            volume,
            self.plan.target.size_bytes,
            work.secrets(volume),
            default_fs_type=work.settings.default_fs_type,
            # The capabilities are known from the handshake, so no further call is needed (DR-003).
            multi_writer="SINGLE_NODE_MULTI_WRITER" in work.driver.controller_capabilities,
        )

    def _unsent(self, message: str) -> Outcome:
        """Handle a failure before the call (MR-032).

        If the size was never sent to the driver, the user can still change it.
        """
        work, size_bytes = self.work, self.plan.target.size_bytes
        known = work.marks.expansion_of(size_bytes)
        if self.plan.is_new and known is None:
            call = Call(str(size_bytes), Result.UNSENT, work.now)
            work.marks = replace(work.marks, expand=call)
        work.complain(words.REASON_RESIZE_FAILED, self._failed_text(message))
        return retry("not sent")

    def _in_use(self) -> str:
        return (
            f"Unable to expand {self.work.claim.path} because CSI driver {self.work.driver.name} "
            "only supports offline expansion and volume is currently in-use"
        )

    def _failed_text(self, message: str) -> str:
        return (
            f'resize volume "{self.work.volume.name}" by resizer "{self.work.driver.name}" failed: '
            f"{message}"
        )

    # After a failed call.

    def _failed(self, message: str, result: Result, error: CsiError | None = None) -> Outcome:
        """Record and report a failed call; return a retry with back-off (R-051, R-052)."""
        work = self.work
        text = self._failed_text(message)
        if not result.may_run and not self.plan.is_legacy:
            text = self._record_failure(message, result) or text
        self._remember(result, error)
        work.complain(words.REASON_RESIZE_FAILED, text)
        if result is Result.INFEASIBLE and not self.plan.is_legacy:
            return retry("infeasible", not_before_seconds=work.settings.retry_interval_max_seconds)
        is_aborted = error is not None and error.code == errors.ABORTED
        if is_aborted and work.lease.fails < ABORTED_TRIES:
            cap = work.settings.retry_interval_start_seconds
            return Outcome(Action.RETRY, cap_seconds=cap, reason="aborted")
        if work.marks.in_use:
            return Outcome(Action.RETRY, cap_seconds=IN_USE_SECONDS, reason="in use")
        return retry(str(result))

    def _record_failure(self, message: str, result: Result) -> str:
        """Write the failure's condition; return an error text if that write fails, else ""."""

        def change(edit: ClaimEdit) -> bool:
            if not self._still_counts(edit):
                return False
            is_infeasible = result is Result.INFEASIBLE
            editing.mark_expand_failed(edit, message, is_infeasible=is_infeasible)
            return True

        try:
            self.work.writer.edit_claim(effects.RECORD_EXPANSION, change)
        except RefusedError as error:
            claim = self.work.claim
            return (
                f"resizing failed in controller with {message} but failed to update PVC "
                f"{claim.path} with: {error}"
            )
        return ""

    def _remember(self, result: Result, error: CsiError | None) -> None:
        work, size_bytes = self.work, self.plan.target.size_bytes
        is_full = error is not None and error.code == errors.RESOURCE_EXHAUSTED
        call: Call | None = None
        if not result.may_run:
            call = Call(str(size_bytes), result, work.now)
        elif work.settings.exhausted_is_final and is_full:
            call = Call(str(size_bytes), result, work.now, exhausted=self._exhausted + 1)
        in_use = work.marks.in_use or (error is not None and is_in_use(error))
        work.marks = replace(work.marks, expand=call, in_use=in_use)

    # After success.

    def _succeeded(self, size_bytes: int, *, node_part: bool) -> Outcome:
        """Save the volume, then the claim (R-060, MR-042).

        After a crash in between, the call is repeated.
        """
        work = self.work
        size = canonical(size_bytes)
        try:
            self._save_size(size, node_part=node_part)
        except RefusedError as error:
            name = work.volume.name
            text = (
                f'error updating pv "{name}" by resizer: updating capacity of PV "{name}" to '
                f"{size} failed: update capacity of PV {name} failed: {error}"
            )
            work.complain(words.REASON_RESIZE_FAILED, text)
            return retry("volume not saved")
        try:
            self._record_success(size, node_part=node_part)
        except NotFoundError as error:  # deleted meanwhile
            return work.end(error, "claim is gone")
        except RefusedError as error:
            what = "node expansion required" if node_part else "resize finished"
            text = (
                f'mark PVC "{work.claim.path}" as {what} failed: {patch_failed(work.claim, error)}'
            )
            work.complain(words.REASON_RESIZE_FAILED, text)
            return work.end(error, "not recorded")
        work.marks = replace(work.marks, expand=None, in_use=False)
        if node_part:
            work.say(words.REASON_FILE_SYSTEM, words.EVENT_NODE_PART)
            return done("waits for the node")
        work.say(words.REASON_RESIZED, words.EVENT_RESIZED)
        return done("expanded")

    def _save_size(self, size: str, *, node_part: bool) -> None:
        work, before = self.work, self.work.claim.actual.text

        def change(volume: JsonObject) -> JsonObject | None:
            annotations = volume["metadata"].get("annotations") or {}
            # Save the size that the driver returned, even if a larger size was written in the
            # meantime (MR-041).
            patch: JsonObject = {"spec": {"capacity": {"storage": size}}}
            if work.settings.annotates and node_part and words.ANN_PRE_RESIZE not in annotations:
                patch["metadata"] = {"annotations": {words.ANN_PRE_RESIZE: before}}
            return patch

        work.writer.edit_volume(effects.SAVE_SIZE, change)

    def _record_success(self, size: str, *, node_part: bool) -> None:
        is_legacy = self.plan.is_legacy

        def change(edit: ClaimEdit) -> bool:
            if not self._still_counts(edit):
                return False
            if node_part:
                editing.mark_node_pending(edit, is_legacy=is_legacy)
            else:
                editing.mark_resized(edit, size, is_legacy=is_legacy)
            return True

        self.work.writer.edit_claim(effects.RECORD_EXPANSION, change)

    def _still_counts(self, edit: ClaimEdit) -> bool:
        """Return True if the claim is still waiting for the result of this size (MR-040)."""
        if self.plan.is_legacy:
            return True
        claim = read_claim(edit.claim)
        ours: set[str] = {Part.CONTROLLER_IN_PROGRESS, Part.CONTROLLER_INFEASIBLE}
        if not self.plan.is_new:
            ours.add(self.part)
        is_same = (
            claim.allocated is not None
            and claim.allocated.size_bytes == self.plan.target.size_bytes
        )
        return is_same and claim.part in ours
