"""From a ticket to a released lease: the frame around every pass.

Nothing raised inside a pass leaves this frame: the key always goes back to its queue, so no
claim is forgotten and no error is seen twice: a task's edge is the one place for
`except Exception`.
"""

from __future__ import annotations

import traceback
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from workers.engine.outcome import Action, Outcome, retry, wait
from workers.engine.steps import Step
from workers.errors import ApiError, LeaseLost, QueueFull, TransientError
from workers.kube.errors import AwayError
from workers.observability import tracing, trail
from workers.observability.logging import get_logger, log_fields
from workers.queue.keys import Key
from workers.queue.leases import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.controller import Controller
    from workers.queue.leases import Lease
    from workers.spec import Kind

_log = get_logger(__name__)

# The API server or Redis is away: look again soon, without a back-off step or an event.
AWAY_SECONDS: Final = 1.0
# Redis takes no new record: all who wait for one come back, and it must have time for the others.
FULL_SECONDS: Final = 15.0
# More would let the other drivers wait for a slot.
PASSES_IN_A_ROW: Final = 4
# Client-go's sidecars: where a controller's settings say nothing.
RETRY_START_SECONDS: Final = 1.0
RETRY_MAX_SECONDS: Final = 300.0
# The words of log lines where they are not those of the command line.
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
    """Whatever fails around a pass: a lease that nobody ends would be renewed for ever."""
    try:
        yield
    except BaseException:
        give_back(context, lease, is_begun=is_begun)
        if lease.successor is not None:
            give_back(context, lease.successor, is_begun=False)
        raise


def run(context: Context, controllers: Mapping[str, Controller], text: str) -> None:
    """Takes the key, runs one pass and releases the key with its outcome.

    Its thread may go on with further keys of the driver, a pass for each.

    Args:
        context: this process's connections.
        controllers: those of this process, by kind of key.
        text: the key's text from the ticket.
    """
    try:
        key = Key.parse(text)
    except ValueError as error:
        _log.warning("ticket dropped", err=error)
        return
    way: Way | None = Way(key, has_task=True)
    try:
        while way is not None:
            driver, tenant = way.key.driver, way.key.tenant
            with context.seats.seat(driver):
                with context.cpu.taken(tenant):
                    for _ in range(PASSES_IN_A_ROW):
                        way = go_on(context, controllers, way)
                        if way is None or way.lease is None or not context.cpu.may_stay(tenant):
                            break
                        if (way.key.driver, way.key.tenant) != (driver, tenant):
                            break
                if way is not None and way.awaits:
                    # In its seat: Celery's consumer would give that to another ticket.
                    following = context.next_ticket(way.key)
                    way = Way(following) if following is not None else None
    except BaseException:
        # Between two passes, where no pass gives back what it leaves behind.
        if way is not None and way.lease is not None:
            give_back(context, way.lease, is_begun=False)
        raise


def go_on(context: Context, controllers: Mapping[str, Controller], way: Way) -> Way | None:
    """One pass; returns how to go on after it."""
    work = pass_of(context, controllers, way.key)
    if work is not None:
        return work.go(way)
    if way.lease is not None:
        give_back(context, way.lease, is_begun=False)
    return None


@dataclass(frozen=True, slots=True)
class Way:
    """What a thread goes on with.

    Attributes:
        key: to be worked on.
        lease: of that key, None if it is to be taken.
        has_task: Celery shows it; all others are shown by us.
        awaits: nothing: the key was ended, and the thread waits a moment for another of its driver.
    """

    key: Key
    lease: Lease | None = None
    has_task: bool = False
    awaits: bool = False


def pass_of(context: Context, controllers: Mapping[str, Controller], key: Key) -> Pass | None:
    """What works on such a key here; None, and a log line, for nothing."""
    controller = controllers.get(key.kind)
    if controller is None:
        _log.warning("ticket dropped, its controller does not run here", key=key.text)
        return None
    kind = next(one for one in controller.spec.kinds if one.name == key.kind)
    driver = context.driver_of(key.driver) if kind.has_driver else None
    if driver is None and kind.has_driver:
        _log.warning(
            "ticket dropped, its driver is not served here", key=key.text, driver=key.driver
        )
        return None
    return Pass(context, controllers, controller, kind, driver, key)


@dataclass(frozen=True, slots=True)
class Pass:
    """One ticket's way from the lease to its release; `driver` is None for driverless kinds."""

    context: Context
    controllers: Mapping[str, Controller]
    controller: Controller
    kind: Kind
    driver: Driver | None
    key: Key

    @property
    def driver_name(self) -> str:
        """As metrics and logs have it, "" without a driver."""
        return self.driver.name if self.driver is not None else ""

    def go(self, way: Way) -> Way | None:
        """Take the key unless that is done, reconcile, give it back; returns how to go on."""
        lease = way.lease
        if lease is not None:
            if not self.may_go_on(lease):
                give_back(self.context, lease, is_begun=False)
                return None
        else:
            found = self.take()
            if found is None:
                return None
            if isinstance(found, Key):
                return Way(found)
            if found.key != self.key:
                return Way(found.key, found)
            lease = found
        with _given_back(self.context, lease, is_begun=False):
            if way.has_task:
                return self.work(lease)
            _log.v(4, "goes on with the next key", key=self.key.text)
            with self.context.shown(self.kind.task, self.key):
                return self.work(lease)

    def take(self) -> Lease | Key | None:
        """The lease of this key or another one, or a key to take instead, see `WorkQueue`."""
        context, key = self.context, self.key
        permit = self.permit()
        if permit is not None and not permit():
            # A fellow gets it: lost tickets are published again.
            _log.v(2, "ticket left to others, the lease is not ours", key=key.text)
            return None
        try:
            locks = self.controller.locks(key, self.driver)
            found = context.queue.take_any(key, locks, self.rules())
        except TransientError as error:
            _log.warning("key not taken", key=key.text, err=error)
            return None
        except Exception:  # noqa: BLE001 - the ticket is published again, see Lua `sweep`
            _log.exception("unexpected error, key not taken", key=key.text)
            context.metrics.unexpected_errors.labels(key.kind, self.driver_name).inc()
            return None
        if isinstance(found, Key):
            return found  # its ticket is this one, and counted with it
        with nullcontext() if found is None else _given_back(context, found, is_begun=False):
            fate = "dropped" if found is None else "taken"
            context.metrics.tickets.labels(key.kind, fate).inc()
        return found

    def may_go_on(self, lease: Lease) -> bool:
        """Whether a key that came with the end of another may still be worked on here."""
        permit = self.permit()
        if permit is not None and not permit():
            _log.v(2, "key left to others, the lease is not ours", key=self.key.text)
            return False
        if set(lease.locks) != set(self.controller.locks(self.key, self.driver)):
            # The driver's settings changed in this moment.
            _log.warning("key given back, it has other locks", key=self.key.text)
            return False
        return True

    def work(self, lease: Lease) -> Way | None:
        """Reconcile and give the key back; returns how to go on."""
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
            result = outcome.action.value
            context.metrics.attempts.labels(key.kind, self.driver_name, result).inc()
            trail.note("end", outcome.reason)
            tracing.ended(result, outcome.reason, is_error=outcome.action is Action.RETRY)
            _log.v(4, "pass ended", outcome=result, result=outcome.reason)
            try:
                self.finish(lease, outcome)
            except Exception as error:  # noqa: BLE001 - a lease nobody releases would hold the key
                self.unexpected(error)
                give_back(context, lease)
        if lease.successor is not None:
            return Way(lease.successor.key, lease.successor)
        return Way(self.key, awaits=True) if lease.rules else None

    def rules(self) -> str:
        """The locks of the keys that this thread may work on as well, see `WorkQueue.take`."""
        context = self.context
        return context.lock_rules.beside(self.key, self.driver, self.controllers, context.may_work)

    def permit(self) -> Callable[[], bool] | None:
        """Asks whether this process may work on such keys; None: always."""
        may_work = self.context.may_work
        if may_work is None:
            return None
        return partial(may_work, self.key.kind, self.key.driver)

    def fields(self) -> dict[str, str]:
        """What every log line of a pass carries."""
        fields = {"key": self.key.text, "driver": self.driver_name}
        noun = LOG_FIELDS.get(self.kind.noun, self.kind.noun)
        return fields | ({noun: self.key.object} if noun else {})

    def unexpected(self, error: Exception) -> None:
        """Tell of a mistake of ours: log, metric and a note for `explain`.

        The note names class and place only: nobody knows what such an error's text holds.
        """
        _log.exception("unexpected error, the key is retried with back-off")
        self.context.metrics.unexpected_errors.labels(self.key.kind, self.driver_name).inc()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{PurePath(frame.filename).name}:{frame.lineno}"
        trail.note("error", f"{trail.UNEXPECTED} {type(error).__name__} at {place}")

    def reconcile(self, lease: Lease) -> Outcome:
        """One pass with every failure turned into an outcome."""
        try:
            return self.controller.sync(self.context, self.driver, self.key, lease)
        except LeaseLost as error:
            _log.warning("lease lost", err=error)
            trail.note("waits", "lease lost")
            self.context.metrics.lease_losses.labels(self.key.kind).inc()
            return wait(0, "lease lost")
        except (TransientError, AwayError) as error:
            _log.warning("key waits", err=error)
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
        """Gives the key back.

        While Redis is away the queue remembers what to write. Of a lease that went meanwhile it
        puts back what may be without an end.
        """
        self.context.effects.reach(Step.FINISH_KEY, lease)
        if self.context.wants_next(lease):
            lease.rules = self.rules()  # what follows is worked on by `run`
        try:
            self.give_back(lease, outcome)
        except TransientError as error:
            _log.warning("key not released", err=error)

    def give_back(self, lease: Lease, outcome: Outcome) -> bool:
        """What the queue does with the key; False when the lease was another's by now."""
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
        """First and longest retry interval by the controller's settings; a part has its whole's."""
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
    """Release a lease whose pass could not be ended in order.

    Args:
        context: whose queue it is of.
        lease: of the pass.
        is_begun: its pass was; else nothing of the key has failed, and nothing counts (G5).
    """
    if lease.is_released:
        return
    lease.rules = ""  # nobody would work on what follows
    try:
        context.queue.release(lease, delay_seconds=AWAY_SECONDS, count=is_begun)
    except TransientError as error:
        _log.warning("key not released", err=error)
