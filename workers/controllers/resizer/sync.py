"""One reconcile of one claim: plans at most one expand and one modify step (MR-001).

One patch records the start of both steps, their calls run in parallel (MR-011), and each result is
written when it arrives. After a crash, the claim still names the size and the class that may be in
progress, so the next worker repeats exactly those calls (MR-033).
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from workers.controllers.resizer import decide, editing, locking, words
from workers.controllers.resizer import modifying as classes
from workers.controllers.resizer import work as effects
from workers.controllers.resizer.decide import Expand, Policy, Resizer, Skip
from workers.controllers.resizer.expansion import ExpandStep
from workers.controllers.resizer.marks import Marks
from workers.controllers.resizer.modification import ModifyStep
from workers.controllers.resizer.modifying import Cancel, Modification, Modify
from workers.controllers.resizer.words import ModifyState
from workers.controllers.resizer.work import Work, patch_failed
from workers.controllers.resizer.writing import Writer
from workers.engine.live import WRITE_TRIES
from workers.engine.outcome import Action, Outcome, blocked, done, retry, wait
from workers.engine.pausing import class_pause
from workers.errors import ApiError, AttemptError, TransientError
from workers.kube import paths
from workers.kube.errors import AwayError, ConflictError, NotFoundError
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.translate.fields import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from workers.controllers.resizer.claim import ClaimView
    from workers.controllers.resizer.decide import Expansion
    from workers.controllers.resizer.editing import ClaimEdit
    from workers.controllers.resizer.settings import ResizerSettings
    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

_log = get_logger(__name__)

Step: TypeAlias = ExpandStep | ModifyStep

# How long to wait before a size is reduced, as a multiple of the call timeout (MR-031).
_EXHAUSTED_DEADLINES: Final = 2


class Reconcile:
    """One reconcile of one claim, under its lease.

    Args:
        resizer: how the driver's volumes are expanded.
        can_modify: whether the driver has MODIFY_VOLUME and the gate is on.
    """

    def __init__(
        self,
        context: Context,
        driver: Driver,
        key: Key,
        lease: Lease,
        settings: ResizerSettings,
        *,
        resizer: Resizer,
        can_modify: bool,
    ) -> None:
        self._context = context
        self._driver = driver
        self._key = key
        self._lease = lease
        self._settings = settings
        self._can_modify = can_modify
        deadlines = _EXHAUSTED_DEADLINES * settings.timeout_seconds
        self._policy = Policy(
            resizer=resizer,
            recovers=settings.recovers,
            slow_seconds=settings.retry_interval_max_seconds,
            exhausted_seconds=deadlines if settings.exhausted_is_final else None,
        )

    def run(self) -> Outcome:
        """Decide and act; raise only if the API server, Redis or the driver is unavailable."""
        for _ in range(WRITE_TRIES):
            try:
                return self._run()
            except ConflictError:
                continue  # nothing was sent yet: read and decide again
            except AttemptError as error:
                trail.note("error", error.message)
                return retry("unreadable")
        return retry("conflicts")

    def _run(self) -> Outcome:
        found = self._read()
        if isinstance(found, Outcome):
            return found
        work = found
        try:
            self._drop_pre_resize(work)
        except (AwayError, ConflictError):
            raise
        except ApiError as error:
            message = (
                f"failed removing annotation {words.ANN_PRE_RESIZE} from pv "
                f'"{work.volume.name}": {error}'
            )
            trail.note("error", message)
            _log.warning("could not remove an annotation of the volume", err=message)
            return retry("annotation not removed")
        expansion, modification = self._plans(work)
        if isinstance(modification, Cancel):
            self._cancel(work)
            expansion, modification = self._plans(work)
        steps = self._steps(work, expansion, modification)
        if not steps:
            return self._nothing(work, (expansion, modification))
        claim = work.claim
        if paused := class_pause(self._context, claim.storage_class):
            return paused
        wanted = locking.locks(
            work.writer.volume,
            self._driver,
            expands=isinstance(expansion, Expand),
            in_use=work.marks.in_use,
        )
        wanted += locking.places(
            self._driver,
            self._key.uid,
            [step.operation for step in steps],
            workers=self._settings.workers,
        )
        busy = self._context.queue.acquire(self._lease, *wanted)
        if busy is not None:
            return blocked(busy)
        return self._carry_out(work, steps, (expansion, modification))

    # Reading and planning.

    def _read(self) -> Work | Outcome:
        """Read the claim and the volume live, so that nothing is stale (R-007, R-012, DR-028)."""
        kube = self._context.kube
        namespace, _, name = self._key.object.partition("/")
        try:
            claim = kube.get_claim(namespace, name)
        except NotFoundError:
            return self._forget("claim is gone")
        if text(claim, "metadata", "uid") != self._key.uid:
            return self._forget("another claim of this name")
        volume_name = text(claim, "spec", "volumeName")
        if not volume_name:
            return done("not bound")
        try:
            volume = kube.get_volume(volume_name)
        except NotFoundError:
            message = f'PV "{volume_name}" bound to pvc "{namespace}/{name}" not found'
            trail.note("error", message)
            _log.warning("volume not found", err=message)
            return retry("volume not found")
        work = Work(
            context=self._context,
            driver=self._driver,
            settings=self._settings,
            lease=self._lease,
            writer=Writer(
                self._context, self._key, self._lease, paths.CLAIMS, claim, volume=volume
            ),
            marks=Marks.parse(self._lease.mark),
        )
        work.marks = pruned(work.marks, work.claim, work.overtaken_seconds)
        if not decide.is_ours(work.claim, work.volume, self._driver.name):
            return done("not our volume")
        return work

    def _forget(self, reason: str) -> Outcome:
        """Drop the state of a claim that is gone (DR-006)."""
        if self._lease.mark:
            self._context.effects.mark(self._lease, {})
        return done(reason)

    def _plans(self, work: Work) -> tuple[Expansion, Modification]:
        claim, volume = work.claim, work.volume
        modification: Modification = Skip("the driver cannot modify volumes")
        if self._can_modify:
            modification = classes.modification(
                claim,
                volume,
                work.marks,
                driver_name=self._driver.name,
                slow_seconds=self._policy.slow_seconds,
                now=work.now,
                overtaken_seconds=work.overtaken_seconds,
            )
        expansion = decide.expansion(claim, volume, work.marks, self._policy, work.now)
        return expansion, modification

    def _steps(self, work: Work, expansion: Expansion, modification: Modification) -> list[Step]:
        steps: list[Step] = []
        if isinstance(expansion, Expand):
            steps.append(ExpandStep(work, expansion, self._policy.resizer, work.claim.part))
        if isinstance(modification, Modify):
            steps.append(ModifyStep(work, modification))
        return steps

    def _nothing(self, work: Work, plans: Sequence[Expansion | Modification]) -> Outcome:
        """End without a step: recheck after the shortest delay, or wait for an event."""
        skips = [plan for plan in plans if isinstance(plan, Skip)]
        reason = "; ".join(plan.reason for plan in skips)
        delays = _delays(work, skips)
        if delays:
            return wait(min(delays), reason)
        work.keep()
        return done(reason)

    # Acting.

    def _drop_pre_resize(self, work: Work) -> None:
        """Remove the pre-resize annotation; the steps then use the changed PV (R-020/4, DR-035)."""
        if not self._settings.annotates:
            return

        def change(volume: JsonObject) -> JsonObject | None:
            del volume
            if not decide.drops_pre_resize(work.claim, work.volume):
                return None
            return {"metadata": {"annotations": {words.ANN_PRE_RESIZE: None}}}

        work.writer.edit_volume(effects.DROP_PRE_RESIZE, change)

    def _cancel(self, work: Work) -> None:
        """Report and record that the user withdrew the class (R-105)."""
        work.say(words.REASON_MODIFY_CANCELED, words.EVENT_CANCELED)

        def change(edit: ClaimEdit) -> bool:
            editing.mark_modify_canceled(edit)
            return True

        work.writer.edit_claim(effects.CANCEL_MODIFICATION, change, tries=1)

    def _carry_out(
        self, work: Work, steps: Sequence[Step], plans: tuple[Expansion, Modification]
    ) -> Outcome:
        for step in steps:
            if isinstance(step, ModifyStep):
                step.read_class()

        def begin(edit: ClaimEdit) -> bool:
            for step in steps:
                step.begin(edit)
            return True

        try:
            work.writer.edit_claim(effects.MARK_STARTED, begin, tries=1)
        except (AwayError, ConflictError):
            raise
        except ApiError as error:
            return self._not_started(work, steps, error)
        outcomes: list[Outcome] = []
        ready: list[Step] = []
        for step in steps:
            ended = step.prepare()
            if ended is None:
                ready.append(step)
            else:
                outcomes.append(ended)
        away: TransientError | None = None
        for step, answer in self._answers(work, ready):
            if isinstance(answer, TransientError):
                away = answer
            else:
                outcomes.append(step.record(answer))
        work.keep()
        if away is not None:
            raise away
        return self._outcome(work, steps, plans, outcomes)

    def _not_started(self, work: Work, steps: Sequence[Step], error: ApiError) -> Outcome:
        if isinstance(error, NotFoundError):
            return done("claim is gone")
        problem = patch_failed(work.claim, error)
        message = f'marking pvc "{work.claim.path}" as resizing failed: {problem}'
        if not any(isinstance(step, ExpandStep) for step in steps):
            message = problem
        trail.note("error", message)
        _log.warning("could not mark the claim as resizing", err=message)
        return retry("not marked")

    def _answers(self, work: Work, steps: Sequence[Step]) -> Iterator[tuple[Step, Any]]:
        """Record each step's call, then make it; yield a step when its response arrives (MR-010).

        Two calls run in parallel, because some drivers merge them into one change, and a long
        cool-down follows each change (MR-011).
        """
        if len(steps) < 2 or self._settings.serializes:
            for step in steps:
                _record_calls(work, (step,))
                self._context.effects.reach(step.name, self._lease)
                yield step, _answer(step)
            return
        _record_calls(work, steps)
        for step in steps:
            self._context.effects.reach(step.name, self._lease)
        with ThreadPoolExecutor(len(steps), thread_name_prefix="resizer-call") as pool:
            running = {pool.submit(copy_context().run, _answer, step): step for step in steps}
            while running:
                ended, _ = wait_for(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield running.pop(future), future.result()

    def _outcome(
        self,
        work: Work,
        steps: Sequence[Step],
        plans: tuple[Expansion, Modification],
        outcomes: Sequence[Outcome],
    ) -> Outcome:
        """Merge the steps' outcomes; if a target was not tried yet, reconcile again at once."""
        tried = {step.target for step in steps}
        following = self._plans(work)
        if any(isinstance(plan, Cancel) for plan in following):
            return wait(0, "more to do")
        if {step.target for step in self._steps(work, *following)} - tried:
            return wait(0, "more to do")
        reason = "; ".join(one.reason for one in outcomes)
        retries = [one for one in outcomes if one.action is Action.RETRY]
        if retries:
            first = min(retries, key=lambda one: one.delay_seconds)
            caps = [one.cap_seconds for one in retries if one.cap_seconds is not None]
            return Outcome(
                Action.RETRY,
                delay_seconds=first.delay_seconds,
                cap_seconds=min(caps) if caps else None,
                reason=reason,
            )
        delays = _delays(work, plans)
        return wait(min(delays), reason) if delays else done(reason)


def pruned(marks: Marks, claim: ClaimView, overtaken_seconds: float) -> Marks:
    """Drop the results for targets that the claim no longer has."""
    call = marks.modify
    if call is not None and (claim.modify_state, claim.modify_target) != (
        ModifyState.IN_PROGRESS,
        call.target,
    ):
        # While a call is in flight, the claim says that the class is in progress. This claim does
        # not, so the call has ended.
        marks = replace(marks, modify=call.answered())
    if claim.modify_state is None and not overtaken_seconds:
        marks = replace(marks, modify=None)
    if claim.wanted.size_bytes <= claim.actual.size_bytes:
        marks = replace(marks, expand=None, in_use=False)
    return marks


def _delays(work: Work, plans: Iterable[Expansion | Modification]) -> list[float]:
    """Return the seconds until suspended targets are due and until overtaken calls have ended."""
    skips = [plan.delay_seconds for plan in plans if isinstance(plan, Skip)]
    overtaken = work.overtaken_seconds or None
    return [seconds for seconds in (*skips, overtaken) if seconds is not None]


def _record_calls(work: Work, steps: Iterable[Step]) -> None:
    for step in steps:
        step.record_call()
    work.keep(effects.RECORD_CALL)


def _answer(step: Step) -> Any:
    """Return the driver's response, or the error that prevented the call."""
    try:
        return step.answer()
    except TransientError as error:
        return error
