"""Deletes keys named like Celery's that fill up Redis: lists that nothing reads, oversized keys.

Redis has no quota per user, so a user with permission to send messages could fill it. No driver
would then get new work until an operator deleted these keys. Deleting them is harmless: the queue
sends lost messages again, and beat rewrites its schedule when it is restarted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from workers.observability.logging import get_logger
from workers.queue import kinds
from workers.queue.connection import NoPermissionError, redis_errors
from workers.queue.names import names_of, redis_key
from workers.queue.scripts import text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import redis

_log = get_logger(__name__)

STEP_SECONDS: Final = 5.0
PAGES: Final = 40
PAGE: Final = 500
LIST_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a list. It has room for several thousand messages, which is more than a list
receives while all of its workers are unavailable.
"""
SCHEDULE_BYTES: Final = 64 * 1024
SCHEDULE: Final = frozenset(
    {"redbeat:tick", "redbeat::schedule", "redbeat::statics", "redbeat::lock"}
)
_ANSWERS: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.reply\.celery\.pidbox")
# Key prefixes that an earlier release used, or that other programs use because they are Celery's
# defaults.
_STRANGE: Final = ("redbeat:", "_kombu.", "unacked")


class CeleryKeys:
    """Deletes leftover keys that are named like Celery's and fill up Redis, a few keys per step.

    Args:
        client: reads csi-fleet's own keys, which determine the expected lists.
        celery: a client that is allowed to read and delete Celery's keys.
        system: the name of the list for beat's ticks.
        drivers: returns the names that drivers are registered under.
    """

    def __init__(
        self,
        client: redis.Redis,
        celery: redis.Redis,
        *,
        system: str,
        drivers: Callable[[], Iterable[str]],
    ) -> None:
        self._client = client
        self._celery = celery
        self._system = system
        self._drivers = drivers
        self._cursor = 0

    def step(self) -> float | None:
        """Check the next keys; return the seconds until the next step; None if there is none.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        with redis_errors():
            try:
                self._look()
            except NoPermissionError as error:
                _log.warning(
                    "could not delete keys named like Celery's that are too large or that no "
                    "process reads",
                    err=error,
                )
                return None
        return STEP_SECONDS

    def _look(self) -> None:
        lists = self._lists()
        for _ in range(PAGES):
            found: Any = self._celery.scan(self._cursor, count=PAGE)
            self._cursor, names = found
            for name in map(text, names):
                most = self._most_bytes(name, lists)
                if most is not None:
                    self._check(name, most)
            if not self._cursor:
                break

    def _lists(self) -> set[str]:
        """Return the names of the lists that a worker reads or that belong to a lane with keys."""
        found: Any = self._client.smembers(redis_key(self._client, "lanes"))
        lanes = {tuple(reversed(text(lane).split("|", 1))) for lane in found if b"|" in lane}
        drivers = {"", *self._drivers()}
        places = {(driver, kind.name) for driver in drivers for kind in kinds.KINDS} | lanes
        names = names_of(self._client)
        return {names.celery_queue(kinds.place_of(*place)) for place in places}

    def _most_bytes(self, name: str, lists: set[str]) -> int | None:
        """Return a key's maximum size: 0 if nothing reads it, None if it is not Celery's key."""
        if name in lists or name == self._system:
            return LIST_BYTES
        if name in SCHEDULE:
            return SCHEDULE_BYTES
        if _ANSWERS.fullmatch(name):
            return 0 if self._celery.ttl(name) == -1 else None
        is_strange = name.startswith((*_STRANGE, names_of(self._client).celery_lists))
        return 0 if is_strange else None

    def _check(self, name: str, most_bytes: int) -> None:
        size: Any = self._celery.memory_usage(name)
        is_list = name in SCHEDULE or text(self._celery.type(name)) == "list"
        if size is None or (size <= most_bytes and is_list):
            return
        self._celery.delete(name)
        _log.warning(
            "deleted a key that is named like Celery's: no process reads it, it is too large, or "
            "it is not a list",
            redis_key=name,
            size_bytes=size,
        )
