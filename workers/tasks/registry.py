"""Declares a worker's Celery tasks: one for work that is due in a list, and one for beat's tick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.app import TASK_TICK, TASK_WORK
from workers.engine.frame import run
from workers.queue.names import CELERY_QUEUE_PREFIX
from workers.tasks.tick import tick

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

    from workers.engine.context import Context
    from workers.engine.controller import Controller
    from workers.engine.periodic import Periodic


def register(
    app: Celery, context: Context, controllers: Mapping[str, Controller], periodic: Periodic
) -> None:
    """Adds csi-fleet's tasks, and removes Celery's own tasks.

    Celery's own tasks send whatever their message contains, so they are a security risk.

    Args:
        app: the app to which the tasks are added.
        context: the context of this process.
        controllers: the controllers that run in this process, by kind of key.
        periodic: the schedule of polls and sweeps.
    """
    app.finalize()
    for name in [one for one in app.tasks if one.startswith("celery.")]:
        app.tasks.unregister(name)

    # Celery sends no events for these tasks, because Flower shows a task for each reconcile
    # instead.
    @app.task(name=TASK_WORK, shared=False, bind=True, send_events=False)
    def work(task: Any) -> None:
        name = task.request.delivery_info["routing_key"]
        run(context, controllers, name.removeprefix(CELERY_QUEUE_PREFIX))

    @app.task(name=TASK_TICK, shared=False, send_events=False)
    def system_tick() -> None:
        tick(context.queue, periodic)
