"""The only code that retries an update after a conflict, with a freshly read object (S-015)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.kube.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.kube.objects import JsonObject

_MAX_ATTEMPTS: Final = 3


def update_with_retry(
    get: Callable[[], JsonObject],
    change: Callable[[JsonObject], JsonObject | None],
    update: Callable[[JsonObject], JsonObject],
    *,
    known: JsonObject | None = None,
    attempts: int = _MAX_ATTEMPTS,
) -> JsonObject:
    """Read, change and update an object; after a conflict, start over with a fresh read.

    Args:
        get: reads the object live.
        change: returns a changed copy of the object, or None if there is nothing left to
            change; it may raise an exception to stop.
        update: replaces the object with a PUT, conditional on its resourceVersion.
        known: the object as the caller has read it, for the first attempt.
        attempts: the largest number of updates to try.

    Returns:
        The object as stored.

    Raises:
        ConflictError: the last attempt also ended in a conflict.
        ApiError: the API server refused for another reason; this is not retried.
    """
    for attempts_left in range(attempts - 1, -1, -1):
        current, known = known or get(), None
        changed = change(current)
        if changed is None:
            return current
        try:
            return update(changed)
        except ConflictError:
            if not attempts_left:
                raise
    raise AssertionError("attempts must be at least 1")
