"""Applies operators' pauses in a worker.

The pauses are copied to Redis before limits are declared, and the keys of paused classes are
returned to the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.engine.outcome import Outcome, wait
from workers.kube.errors import ForbiddenError
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from workers.engine.context import Runtime
    from workers.kube.pauserecord import PauseRecord
    from workers.queue.pauses import Pauses

_log = get_logger(__name__)

AGAIN_SECONDS: Final = 5.0


def mirror_first(pauses: Pauses, record: PauseRecord) -> None:
    """Copy the operators' pauses from the API server to a Redis that has no recent copy.

    Call this before limits are declared.

    Raises:
        ApiError: the pauses cannot be determined.
        QueueUnavailable: Redis does not answer.
    """
    if pauses.is_mirrored():
        return
    try:
        pauses.mirror(record.get())
    except ForbiddenError as error:
        # Work must continue even if the Roles are from an older release; the watcher mirrors the
        # pauses too.
        _log.error("this worker is not allowed to read the ConfigMap with the pauses", err=error)


def class_pause(runtime: Runtime, name: str) -> Outcome | None:
    """Return the outcome for a key of the class, if the class is paused; None if it is not.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    found = runtime.pauses.of_class(name) if runtime.pauses is not None and name else None
    return wait(AGAIN_SECONDS, f"class {name} is paused: {found.reason}") if found else None
