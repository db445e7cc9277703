"""Waiting for a condition without sleeping blindly: the only place in the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def let_pass(seconds: float) -> None:
    """Sleep, for tests about time itself: a lease that expires, a pause between faults."""
    time.sleep(seconds)


def wait_until(
    predicate: Callable[[], T],
    timeout_seconds: float,
    description: str,
    *,
    interval_seconds: float = 0.05,
    fatal: type[Exception] | tuple[type[Exception], ...] = (),
) -> T:
    """Poll until `predicate` returns a true value, and return that value.

    Raises:
        TimeoutError: names `description`; chained to the predicate's last exception, which
            counts as "not yet" while time is left, unless it is one of `fatal`.
    """
    deadline = time.monotonic() + timeout_seconds
    last_error: Exception | None = None
    while True:
        try:
            last_error = None
            value = predicate()
        except fatal:
            raise
        except Exception as error:  # noqa: BLE001  # reported when the time is up
            last_error, value = error, None
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(f"not within {timeout_seconds} s: {description}") from last_error
        time.sleep(interval_seconds)
