"""Connects the attacher to the engine: the work for each kind of key, the locks and the limits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from workers.controllers.attacher import names
from workers.controllers.attacher.attach import AttachmentPass, attach, settings_of
from workers.controllers.attacher.compare import can_compare, compare
from workers.controllers.attacher.detach import abandon, detach, pretend, release_volume, take_back
from workers.controllers.attacher.spec import SPEC
from workers.engine.controller import Due
from workers.engine.live import DriverPass
from workers.engine.outcome import Ended, done
from workers.errors import ApiError, LeaseLost, TransientError
from workers.kube import paths
from workers.queue.locks import Lock
from workers.translate.fields import is_deleting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.engine.outcome import Outcome
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

FORCED_AT_ONCE: Final = 2


class AttacherController:
    """Attaches and detaches volumes, removes PVs' finalizers, and compares with ListVolumes."""

    spec = SPEC

    def locks(self, key: Key, driver: Driver | None) -> tuple[Lock, ...]:
        """Return the attachment's lock; for a finalizer key, the lock on the PV's name."""
        del driver
        if key.kind == names.FINALIZERS:
            return (Lock(key.object),)
        return (Lock(f"va#{key.uid}"),) if key.uid else ()

    def sync(self, context: Context, driver: Driver | None, key: Key, lease: Lease) -> Outcome:
        """Run the reconcile for the key's kind."""
        assert driver is not None  # all kinds have a driver
        if key.kind == names.FINALIZERS:
            return release_volume(DriverPass(context, key, lease, paths.VOLUMES, driver=driver))
        if key.kind == names.RECONCILE:
            return compare(DriverPass(context, key, lease, paths.ATTACHMENTS, driver=driver))
        return sync_attachment(
            AttachmentPass(context, key, lease, paths.ATTACHMENTS, driver=driver)
        )

    def periodic(self, context: Context, driver: Driver | None) -> Iterable[Due]:
        """Return the periodic comparison with ListVolumes, if the driver supports it (A-090)."""
        del context
        if driver is None or not can_compare(driver):
            return ()
        seconds = settings_of(driver).reconcile_seconds
        return (Due(names.reconcile_key(driver.queue_name), seconds),)

    def serves(self, driver: Driver) -> bool:
        """Return True: if a driver cannot attach, its attachments are marked attached (A-004)."""
        del driver
        return True

    def limits(self, driver: Driver | None) -> Mapping[str, int]:
        """Return the limits for attaches, detaches and PVs; each of them is `--worker-threads`.

        The limits are separate (A-030, DA-023).
        """
        assert driver is not None
        threads = settings_of(driver).worker_threads
        return {
            names.ATTACHMENTS: threads,
            names.DETACHMENTS: threads,
            names.FORCED: min(threads, FORCED_AT_ONCE),
            names.FINALIZERS: threads,
            names.RECONCILE: 1,
        }


def sync_attachment(work: AttachmentPass) -> Outcome:
    """Reconcile an attachment according to its current state."""
    if not work.read():
        return take_back(work)
    if work.item["spec"]["attacher"] != work.driver.name:
        return done("attachment of another driver")
    work.is_forced = work.key.kind == names.FORCED
    if not all(map(work.driver.supports, ("CONTROLLER_SERVICE", "PUBLISH_UNPUBLISH_VOLUME"))):
        return pretend(work)
    if is_deleting(work.item):
        return hand_over(work) if work.key.kind == names.ATTACHMENTS else detach(work)
    try:
        outcome = attach(work)
    except LeaseLost:
        raise
    except (Ended, ApiError, TransientError):
        if work.is_unsaved and work.is_gone():
            return abandon(work)
        raise
    return abandon(work) if work.is_unsaved and work.is_gone() else outcome


def hand_over(work: AttachmentPass) -> Outcome:
    """Requeue a deleted attachment as a detach, which has its own queue.

    The watcher adds the same key when it sees the deletion.
    """
    work.context.queue.add([replace(work.key, kind=names.DETACHMENTS)])
    return done("attachment is deleted")


CONTROLLER: Final = AttacherController()
