"""The Celery tasks of a worker: one name per kind of key, shown by Flower with its key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.app import TASK_TICK
from workers.controllers import catalogue
from workers.engine.frame import run
from workers.tasks.tick import tick

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.app import FleetApp
    from workers.engine.context import Context
    from workers.engine.controller import Controller
    from workers.engine.periodic import Periodic


def register(
    app: FleetApp, context: Context, controllers: Mapping[str, Controller], periodic: Periodic
) -> None:
    """Adds the tasks of all kinds, and removes Celery's own tasks.

    Kinds of controllers that do not run here get a task too: `frame.run` reports such keys.
    Celery's own tasks send whatever their message contains, so they would be a security risk.

    Args:
        app: the app to which the tasks are added.
        context: the context of this process.
        controllers: the controllers that run here, by kind of key.
        periodic: the schedule of polls and sweeps.
    """
    app.finalize()
    for name in [one for one in app.tasks if one.startswith("celery.")]:
        app.tasks.unregister(name)
    for kind in catalogue.kinds().values():

        @app.task(name=kind.task, shared=False)
        def sync(text: str) -> None:
            run(context, controllers, text)

    @app.task(name=TASK_TICK, shared=False)
    def system_tick() -> None:
        tick(context.queue, periodic)
