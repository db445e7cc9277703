"""The Celery tasks of a worker: one name per kind of key, shown by Flower with its key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.app import TASK_TICK, TASKS
from workers.controllers.capacity.sync import capacity_domain, sync_capacity
from workers.controllers.provisioner.claims import claim_domain, sync_claim
from workers.controllers.provisioner.cloning import no_domain, sync_cloning
from workers.controllers.provisioner.sweep import sweep_snapshots
from workers.controllers.provisioner.volumes import sync_volume, volume_domain
from workers.engine.frame import run
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

    @app.task(name=TASKS["capacity"])
    def capacity_sync(text: str) -> None:
        run(app.runtime, text, capacity_domain, sync_capacity)

    @app.task(name=TASKS["cloning"])
    def cloning_sync(text: str) -> None:
        run(app.runtime, text, no_domain, sync_cloning)

    @app.task(name=TASKS["sweep"])
    def snapshots_sweep(text: str) -> None:
        run(app.runtime, text, no_domain, sweep_snapshots)

    @app.task(name=TASK_TICK)
    def system_tick() -> None:
        tick(app.runtime)
