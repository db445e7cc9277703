"""The Celery tasks of a worker: one name per kind of key, shown by Flower with its key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.app import TASK_TICK, TASKS
from workers.provision.claims import claim_domain, sync_claim
from workers.provision.volumes import sync_volume, volume_domain
from workers.tasks.run import run
from workers.tasks.tick import tick

if TYPE_CHECKING:
    from workers.app import FleetApp


def register(app: FleetApp) -> None:
    """Adds the tasks; `app.runtime` must be set before the first of them runs."""

    @app.task(name=TASKS["claims"])
    def claims_sync(text: str) -> None:
        run(app.runtime, text, claim_domain, sync_claim)

    @app.task(name=TASKS["volumes"])
    def volumes_sync(text: str) -> None:
        run(app.runtime, text, volume_domain, sync_volume)

    @app.task(name=TASK_TICK)
    def system_tick() -> None:
        tick(app.runtime)
