"""Runs the snapshotter as a controller of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.controllers.snapshotter.groups import sync_group_content
from workers.controllers.snapshotter.rules import KIND_CONTENTS, KIND_GROUP_CONTENTS
from workers.controllers.snapshotter.spec import SPEC
from workers.controllers.snapshotter.sync import sync_content

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.controllers.snapshotter.settings import SnapshotterSettings
    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.controller import Due
    from workers.engine.outcome import Outcome
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.queue.locks import Lock


class SnapshotterController:
    """Creates snapshots, polls them until they are ready, and deletes them."""

    spec = SPEC

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """Return no locks, because a reconcile takes its locks once it has decided what to do."""
        del key, driver
        return ()

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """Reconciles the key according to its kind."""
        assert driver is not None  # keys of all kinds have a driver
        if key.kind == KIND_GROUP_CONTENTS:
            return sync_group_content(context, driver, key, lease)
        return sync_content(context, driver, key, lease)

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """Return nothing, because a waiting key is scheduled for the time when it is due."""
        del context, driver
        return ()

    def serves(self, driver: Driver) -> bool:
        """True if the driver can create and delete snapshots (SNS-110)."""
        return driver.supports("CREATE_DELETE_SNAPSHOT")

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """Limits reconciles of each kind to `--worker-threads` at once, as csi-snapshotter does."""
        assert driver is not None
        settings: SnapshotterSettings = driver.settings.controllers[SPEC.name]
        threads = settings.worker_threads
        return {KIND_CONTENTS: threads, KIND_GROUP_CONTENTS: threads if settings.groups else 0}


CONTROLLER: Final = SnapshotterController()
