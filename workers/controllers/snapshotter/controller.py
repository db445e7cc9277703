"""The snapshotter as the engine runs it."""

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
    """Snapshots are cut, watched until they are ready, and deleted."""

    spec = SPEC

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """None at first: the locks depend on what is to be done."""
        del key, driver
        return ()

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """One pass of the key's kind."""
        assert driver is not None  # all kinds have one
        if key.kind == KIND_GROUP_CONTENTS:
            return sync_group_content(context, driver, key, lease)
        return sync_content(context, driver, key, lease)

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """Nothing: whoever waits has a time of its own."""
        del context, driver
        return ()

    def serves(self, driver: Driver) -> bool:
        """A driver that can take snapshots (SNS-110)."""
        return driver.supports("CREATE_DELETE_SNAPSHOT")

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """`--worker-threads` for each kind, as upstream."""
        assert driver is not None
        settings: SnapshotterSettings = driver.settings.controllers[SPEC.name]
        threads = settings.worker_threads
        return {KIND_CONTENTS: threads, KIND_GROUP_CONTENTS: threads if settings.groups else 0}


CONTROLLER: Final = SnapshotterController()
