"""Claims and volumes of a class that an operator paused go back, with the reason to be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.engine.outcome import Outcome, wait

if TYPE_CHECKING:
    from workers.engine.context import Runtime

AGAIN_SECONDS: Final = 5.0


def class_pause(runtime: Runtime, name: str) -> Outcome | None:
    """The outcome of a pass over a paused class; None if it may go on.

    Raises:
        QueueUnavailable: Redis does not answer.
    """
    found = runtime.pauses.of_class(name) if runtime.pauses is not None and name else None
    return wait(AGAIN_SECONDS, f"class {name} is paused: {found.reason}") if found else None
