"""Runs reconciles: takes a key, takes its locks, calls the controller, and releases the key.

No exception raised in a reconcile leaves this frame. The key always returns to its queue, so no
claim is forgotten; no error is reported twice. Controllers therefore need no `except Exception`.
"""

from __future__ import annotations

import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from workers.engine.outcome import Action, Ended, Outcome, retry, wait
from workers.engine.steps import Step
from workers.errors import ApiError, LeaseLost, QueueFull, TransientError
from workers.kube.errors import AwayError
from workers.observability import tracing, trail
from workers.observability.logging import get_logger, log_fields
from workers.queue.kinds import kinds_of
from workers.queue.leases import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.controller import Controller
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.spec import Kind

_log = get_logger(__name__)

# Retry delay while the API server or Redis is unreachable: no back-off step is counted and no event
# is sent.
AWAY_SECONDS: Final = 1.0
# Retry delay while Redis accepts no new records: other keys must finish first.
FULL_SECONDS: Final = 15.0
# How long a thread keeps taking keys from one list before it lets other lists have their turn.
TURN_SECONDS: Final = 0.5
# The retry intervals of the Go sidecars, for controllers that have no settings for them.
RETRY_START_SECONDS: Final = 1.0
RETRY_MAX_SECONDS: Final = 300.0
# Log field names that differ from the nouns on the command line.
LOG_FIELDS: Final = {"pvc": "claim", "pv": "volume"}


@contextmanager
def _current(lease: Lease) -> Iterator[None]:
    token = CURRENT.set(lease)
    try:
        yield
    finally:
        CURRENT.reset(token)


@contextmanager
def _given_back(context: Context, lease: Lease, *, is_begun: bool = True) -> Iterator[None]:
    """Release the lease if the block fails, or the heartbeat would renew it forever."""
    try:
        yield
    except BaseException:
        give_back(context, lease, is_begun=is_begun)
        raise


def run(context: Context, controllers: Mapping[str, Controller], place: str) -> None:
    """Reconcile the due keys of one place, one after the other.

    Return when no key is due, when the place has used up its turn, or when this process is no
    longer allowed to work on such keys. Another message will be sent for the remaining keys.

    Args:
        context: this process's connections.
        controllers: the controllers of this process, by the kind of their keys.
        place: the keys' place (see `workers.queue.kinds.place_of`).
    """
    by_name = {kind.name: kind for one in controllers.values() for kind in one.spec.kinds}
    driver_name, kinds = kinds_of(place, map(by_name.__getitem__, controllers))
    driver = context.driver_of(driver_name) if driver_name else None
    if not kinds or (driver_name and driver is None):
        _log.v(2, "dropped a wake-up, because its list is not served here", place=place)
        return
    ends = time.monotonic() + TURN_SECONDS
    is_woken = goes_on = True
    with context.seats.seat(driver_name):
        while goes_on:
            lease = _take(context, driver_name, kinds, is_woken=is_woken)
            is_woken = False
            if lease is None:
                return
            controller = controllers[lease.key.kind]
            kind = by_name[lease.key.kind]
            Pass(context, controller, kind, driver, lease.key, ends).go(lease)
            goes_on = lease.takes_next


def _take(context: Context, driver: str, kinds: Sequence[str], *, is_woken: bool) -> Lease | None:
    may_work = context.may_work
    wanted = [kind for kind in kinds if may_work is None or may_work(kind, driver)]
    if not wanted:
        # The sweep sends another message for this list, so a peer worker takes these keys.
        _log.v(2, "left the keys to other workers, because the Lease is not ours", driver=driver)
        return None
    try:
        return context.queue.take(driver, wanted, is_woken=is_woken)
    except TransientError as error:
        _log.warning("could not take a key from the queue", driver=driver, err=error)
        return None


@dataclass(frozen=True, slots=True)
class Pass:
    """One reconcile of one key, from taking its lease to releasing it.

    Attributes:
        driver: the driver of the key; None for kinds without a driver.
        turn_ends: the monotonic time after which the thread takes no more keys.
    """

    context: Context
    controller: Controller
    kind: Kind
    driver: Driver | None
    key: Key
    turn_ends: float

    @property
    def driver_name(self) -> str:
        """The driver's name for metrics and logs; "" without a driver."""
        return self.driver.name if self.driver is not None else ""

    def go(self, lease: Lease) -> None:
        """Take the key's locks, reconcile the key and release it."""
        with _given_back(self.context, lease, is_begun=False):
            if self.enter(lease):
                with self.context.shown(self.kind.task, self.key) as ended:
                    self.work(lease, ended)
            else:
                lease.takes_next = self.turn_lasts()

    def enter(self, lease: Lease) -> bool:
        """Take all locks; return False on an error, or if the key must wait for a busy lock."""
        context, key = self.context, self.key
        try:
            return context.queue.enter(lease, self.controller.locks(key, self.driver))
        except TransientError as error:
            _log.warning("could not take the locks of a key", key=key.text, err=error)
        except Exception:  # noqa: BLE001 - one key's defect must not stop the others
            _log.exception("unexpected error while taking the locks of a key", key=key.text)
            context.metrics.unexpected_errors.labels(key.kind, self.driver_name).inc()
        give_back(context, lease, is_begun=False)
        return False

    def turn_lasts(self) -> bool:
        """Return True if this thread may take another key of the same list afterwards."""
        return time.monotonic() < self.turn_ends and self.context.goes_on(self.key)

    def work(self, lease: Lease, ended: Callable[[Outcome], None]) -> None:
        """Reconcile the key and release it; `ended` is called with the outcome."""
        context, key, name = self.context, self.key, self.kind.work_queue
        lease.permit = self.permit()
        context.metrics.work_adds.labels(name).inc()
        context.metrics.work_queue_seconds.labels(name).observe(lease.waited_seconds)
        fields = self.fields()
        with (
            _given_back(context, lease),
            trail.collect(),
            _current(lease),
            log_fields(**fields),
            context.running.work(name),
            context.passes.running(lease),
            context.tracing.work(f"{key.kind} pass", key.text, lease.waited_seconds, **fields),
        ):
            outcome = self.reconcile(lease)
            ended(outcome)
            result = outcome.action.value
            context.metrics.attempts.labels(key.kind, self.driver_name, result).inc()
            # For a failed attempt, the outcome's reason is upstream's name for the state, such as
            # "finished", so the note says "failed" instead.
            has_failed = outcome.action is Action.RETRY and trail.last("error")
            trail.note("end", "failed" if has_failed else outcome.reason)
            tracing.ended(result, outcome.reason, is_error=outcome.action is Action.RETRY)
            _log.v(4, "pass ended", outcome=result, result=outcome.reason)
            try:
                self.finish(lease, outcome)
            except Exception as error:  # noqa: BLE001 - an unreleased lease would block the key
                self.unexpected(error)
                give_back(context, lease)

    def permit(self) -> Callable[[], bool] | None:
        """Return a function that checks whether this process may work on such keys.

        Return None if there are no elections, so that the process always may.
        """
        may_work = self.context.may_work
        if may_work is None:
            return None
        return partial(may_work, self.key.kind, self.key.driver)

    def fields(self) -> dict[str, str]:
        """Return the fields that every log line of a reconcile has."""
        fields = {"key": self.key.text, "driver": self.driver_name}
        noun = LOG_FIELDS.get(self.kind.noun, self.kind.noun)
        return fields | ({noun: self.key.object} if noun else {})

    def unexpected(self, error: Exception) -> None:
        """Report a bug in csi-fleet, with a log line, a metric and a note for `explain`.

        The note contains only the error's class and location, because its message could contain a
        secret.
        """
        _log.exception("unexpected error, the key is retried with back-off")
        self.context.metrics.unexpected_errors.labels(self.key.kind, self.driver_name).inc()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{PurePath(frame.filename).name}:{frame.lineno}"
        trail.note("error", f"{trail.UNEXPECTED} {type(error).__name__} at {place}")

    def reconcile(self, lease: Lease) -> Outcome:
        """Call the controller and turn every failure into an outcome."""
        try:
            return self.controller.sync(self.context, self.driver, self.key, lease)
        except Ended as ended:
            return ended.outcome
        except LeaseLost as error:
            _log.warning("stopped a reconcile: another worker may have its key now", err=error)
            trail.note("waits", "lease lost")
            self.context.metrics.lease_losses.labels(self.key.kind).inc()
            return wait(0, "lease lost")
        except (TransientError, AwayError) as error:
            _log.warning("the key will be retried", err=error)
            trail.note("waits", str(error))
            is_full = isinstance(error, QueueFull)
            return wait(FULL_SECONDS if is_full else AWAY_SECONDS, "away")
        except ApiError as error:
            trail.tell_refused(_log, error)
            return retry("refused")
        except Exception as error:  # noqa: BLE001 - one key's defect must not stop the others
            self.unexpected(error)
            return retry("unexpected")

    def finish(self, lease: Lease, outcome: Outcome) -> None:
        """Release the key with its outcome.

        While Redis is unavailable, the queue keeps the data to be written. If the lease has been
        lost meanwhile, the queue restores the attempt's records, because the attempt may still be
        open.
        """
        self.context.effects.reach(Step.FINISH_KEY, lease)
        lease.takes_next = self.turn_lasts()
        try:
            self.give_back(lease, outcome)
        except TransientError as error:
            _log.warning("could not release the key", err=error)

    def give_back(self, lease: Lease, outcome: Outcome) -> bool:
        """Apply the outcome to the queue; False if another worker already has the lease."""
        queue = self.context.queue
        if outcome.action is Action.DONE:
            return queue.done(lease, finish_intent=outcome.finish_intent, known=outcome.known)
        if outcome.action is Action.RETRY:
            self.context.metrics.work_retries.labels(self.kind.work_queue).inc()
            start, longest = self.retry_intervals()
            return queue.fail(
                lease,
                base_seconds=outcome.base_seconds or start,
                cap_seconds=outcome.cap_seconds or longest,
                min_delay_seconds=outcome.delay_seconds,
                threshold=outcome.give_up_after,
                memo=outcome.memo,
            ).is_owner
        if outcome.action is Action.BLOCKED and outcome.lock is not None:
            return queue.block(lease, outcome.lock)
        return queue.release(lease, delay_seconds=outcome.delay_seconds)

    def retry_intervals(self) -> tuple[float, float]:
        """Return the initial and the maximum retry interval of the controller or its parent."""
        spec = self.controller.spec
        settings = (self.driver or self.context).settings.controllers
        for name in filter(None, (spec.name, spec.part_of)):
            own = settings.get(name)
            start = getattr(own, "retry_interval_start_seconds", None)
            longest = getattr(own, "retry_interval_max_seconds", None)
            if start is not None and longest is not None:
                return float(start), float(longest)
        return RETRY_START_SECONDS, RETRY_MAX_SECONDS


def give_back(context: Context, lease: Lease, *, is_begun: bool = True) -> None:
    """Release a lease whose reconcile did not end normally.

    Args:
        context: the context that has the queue.
        lease: the lease of the reconcile.
        is_begun: True if the reconcile had begun. Otherwise no attempt failed, so no failure is
            counted (G5).
    """
    if lease.is_released:
        return
    lease.takes_next = False
    try:
        context.queue.release(lease, delay_seconds=AWAY_SECONDS, count=is_begun)
    except TransientError as error:
        _log.warning("could not release the key", err=error)
