"""From a ticket to a released lease: the frame around every pass.

Nothing raised inside a pass leaves this frame: the key always goes back to its queue, so no
claim is forgotten and no error is seen twice (style 6: the task's edge is the one place for
`except Exception`).
"""

from __future__ import annotations

import traceback
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from workers.engine.outcome import Action, Outcome, retry, wait
from workers.engine.steps import Step
from workers.errors import ApiError, LeaseLost, TransientError
from workers.kube.errors import AwayError
from workers.observability import tracing, trail
from workers.observability.logging import get_logger, log_fields, log_v
from workers.observability.metrics import work_queue_name
from workers.queue.keys import Key
from workers.queue.locks import Lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.drivers.driver import Driver
    from workers.engine.context import Runtime
    from workers.queue.leases import Lease

_log = get_logger()

# The API server or Redis is away: look again soon, without a back-off step or an event.
AWAY_SECONDS: Final = 1.0


def run(
    runtime: Runtime,
    text: str,
    domain: Callable[[Driver, Key], str],
    work: Callable[[Runtime, Driver, Key, Lease], Outcome],
) -> None:
    """Takes the key, runs one pass and releases the key with its outcome.

    Args:
        runtime: this process's connections.
        text: the key's text from the ticket.
        domain: the lease domain of a key.
        work: one pass of the key's kind.
    """
    try:
        key = Key.parse(text)
    except ValueError as error:
        _log.warning("ticket dropped", err=error)
        return
    driver = runtime.driver_of(key.driver)
    if driver is None:
        _log.warning("ticket dropped, its driver is not served here", key=text, driver=key.driver)
        return
    with runtime.seats.seat(key.driver):
        work_on(runtime, driver, key, domain, work)


def work_on(
    runtime: Runtime,
    driver: Driver,
    key: Key,
    domain: Callable[[Driver, Key], str],
    work: Callable[[Runtime, Driver, Key, Lease], Outcome],
) -> None:
    """From the lease to its release."""
    try:
        name = domain(driver, key)
        lease = runtime.queue.take(key, (Lock(name),) if name else ())
    except TransientError as error:
        _log.warning("key not taken", key=key.text, err=error)
        return
    except Exception:  # noqa: BLE001 - the ticket is published again, see Lua `sweep`
        _log.exception("unexpected error, key not taken", key=key.text)
        runtime.metrics.unexpected_errors.labels(key.kind, driver.name).inc()
        return
    runtime.metrics.tickets.labels(key.kind, "dropped" if lease is None else "taken").inc()
    if lease is None:
        return
    name = work_queue_name(key.kind)
    runtime.metrics.work_adds.labels(name).inc()
    runtime.metrics.work_queue_seconds.labels(name).observe(lease.waited_seconds)
    fields = fields_of(key, driver)
    with (
        trail.collect(),
        log_fields(**fields),
        runtime.running.work(key.kind),
        runtime.tracing.work(f"{key.kind} pass", key.text, lease.waited_seconds, **fields),
    ):
        outcome = attempt(runtime, driver, key, lease, work)
        runtime.metrics.attempts.labels(key.kind, driver.name, outcome.action.value).inc()
        trail.note("end", outcome.reason)
        tracing.ended(outcome.action.value, outcome.reason, is_error=outcome.action is Action.RETRY)
        log_v(4).info("pass ended", outcome=outcome.action.value, result=outcome.reason)
        try:
            finish(runtime, driver, lease, outcome)
        except Exception as error:  # noqa: BLE001 - a lease nobody releases would hold the key
            unexpected(runtime, driver, key, error)
            give_back(runtime, lease)


def fields_of(key: Key, driver: Driver) -> dict[str, str]:
    """What every log line of a pass carries."""
    fields = {"key": key.text, "driver": driver.name}
    name = {"claims": "claim", "volumes": "volume"}.get(key.kind)
    return fields | {name: key.object} if name else fields


def unexpected(runtime: Runtime, driver: Driver, key: Key, error: Exception) -> None:
    """Tell of a mistake of ours: log, metric and a note for `explain`.

    The note names class and place only: nobody knows what such an error's text holds.
    """
    _log.exception("unexpected error, the key is retried with back-off")
    runtime.metrics.unexpected_errors.labels(key.kind, driver.name).inc()
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{PurePath(frame.filename).name}:{frame.lineno}"
    trail.note("error", f"{trail.UNEXPECTED} {type(error).__name__} at {place}")


def give_back(runtime: Runtime, lease: Lease) -> None:
    """Release a lease whose pass could not be ended in order."""
    if lease.is_released:
        return
    try:
        runtime.queue.release(lease, delay_seconds=AWAY_SECONDS, count=True)
    except TransientError as error:
        _log.warning("key not released", err=error)


def attempt(
    runtime: Runtime,
    driver: Driver,
    key: Key,
    lease: Lease,
    work: Callable[[Runtime, Driver, Key, Lease], Outcome],
) -> Outcome:
    """One pass with every failure turned into an outcome."""
    try:
        return work(runtime, driver, key, lease)
    except LeaseLost as error:
        _log.warning("lease lost", err=error)
        trail.note("waits", "lease lost")
        runtime.metrics.lease_losses.labels(key.kind).inc()
        return wait(0, "lease lost")
    except (TransientError, AwayError) as error:
        _log.warning("key waits", err=error)
        trail.note("waits", str(error))
        return wait(AWAY_SECONDS, "away")
    except ApiError as error:
        _log.warning("the API server refused", err=error)
        trail.note("error", f"the API server refused: {error}")
        return retry("refused")
    except Exception as error:  # noqa: BLE001 - one key's defect must not stop the others
        unexpected(runtime, driver, key, error)
        return retry("unexpected")


def finish(runtime: Runtime, driver: Driver, lease: Lease, outcome: Outcome) -> None:
    """Gives the key back.

    A lease that went meanwhile changes nothing in Redis; the key is then added once more and an
    attempt without end put back, because after a Redis that lost its data nobody else may know of
    it. While Redis is away queue and safekeeping remember what to write.
    """
    provision, is_owner = driver.settings.provision, False
    runtime.steps.reach(Step.FINISH_KEY, lease)
    try:
        if outcome.action is Action.DONE:
            is_owner = runtime.queue.done(lease, finish_intent=outcome.finish_intent)
        elif outcome.action is Action.RETRY:
            runtime.metrics.work_retries.labels(work_queue_name(lease.key.kind)).inc()
            is_owner = runtime.queue.fail(
                lease,
                base_seconds=outcome.base_seconds or provision.retry_interval_start_seconds,
                cap_seconds=outcome.cap_seconds or provision.retry_interval_max_seconds,
                min_delay_seconds=outcome.delay_seconds,
                threshold=driver.backend.threshold(lease.key.kind) if outcome.may_give_up else 0,
                memo=outcome.memo,
            ).is_owner
        else:
            is_owner = runtime.queue.release(lease, delay_seconds=outcome.delay_seconds)
        if not is_owner:
            runtime.queue.add([lease.key])
    except TransientError as error:
        _log.warning("key not released", err=error)
    runtime.safekeeping.close(lease, is_settled=is_owner or outcome.finish_intent)
