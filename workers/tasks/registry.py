"""The Celery tasks of a worker: one name per kind of key, shown by Flower with its key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.app import TASK_TICK
from workers.controllers import catalogue
from workers.engine.frame import run
from workers.tasks.tick import tick

if TYPE_CHECKING:
    from workers.app import FleetApp


def register(app: FleetApp) -> None:
    """Adds the tasks of all kinds; `app.runtime` must be set before the first of them runs.

    Those of controllers that do not run here too: what cannot be worked on is told by the frame.
    Celery's own go: they send what their message holds.
    """
    app.finalize()
    for name in [one for one in app.tasks if one.startswith("celery.")]:
        app.tasks.unregister(name)
    for kind in catalogue.kinds().values():

        @app.task(name=kind.task)
        def sync(text: str) -> None:
            run(app.runtime, text)

    @app.task(name=TASK_TICK)
    def system_tick() -> None:
        tick(app.runtime)
