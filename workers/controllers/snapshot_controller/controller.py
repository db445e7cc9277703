"""Runs the snapshot controller, which needs no driver, as a controller of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.controllers.snapshot_controller import keys
from workers.controllers.snapshot_controller.bindings import sync_binding
from workers.controllers.snapshot_controller.claims import sync_source
from workers.controllers.snapshot_controller.groupbindings import sync_group_binding
from workers.controllers.snapshot_controller.groups import sync_group
from workers.controllers.snapshot_controller.spec import SPEC
from workers.controllers.snapshot_controller.sync import sync_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.controller import Due
    from workers.engine.outcome import Outcome
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.queue.locks import Lock

_PASSES: Final[Mapping[str, Callable[[Context, Key, Lease], Outcome]]] = {
    keys.KIND_SNAPSHOTS: sync_snapshot,
    keys.KIND_BINDINGS: sync_binding,
    keys.KIND_GROUPS: sync_group,
    keys.KIND_GROUP_BINDINGS: sync_group_binding,
    keys.KIND_SOURCES: sync_source,
}
THREADS: Final = 10


class SnapshotController:
    """Binds snapshots to their snapshot contents, and deletes both in the right order."""

    spec = SPEC

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """Return no locks, because a reconcile takes its locks once it has decided what to do."""
        del key, driver
        return ()

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """Reconciles the key according to its kind."""
        del driver
        return _PASSES[key.kind](context, key, lease)

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """Return nothing, because only events and retries start reconciles."""
        del context, driver
        return ()

    def serves(self, driver: Driver) -> bool:
        """Return False for every driver, because this controller needs none."""
        del driver
        return False

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """Return the limit on concurrent reconciles for each kind (SNC-100, --worker-threads)."""
        del driver
        return dict.fromkeys(_PASSES, THREADS)


CONTROLLER: Final = SnapshotController()
