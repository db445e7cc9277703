"""One pass over a PersistentVolume: finalizer upkeep and deletion (L-070, P-500 to P-521).

DeleteVolume is idempotent by id, the PV is deleted only if its UID is still the one decided on, and
the finalizer goes last: a death between any two steps leaves a PV that the next owner finishes.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from csi_client.errors import CsiError
from workers import constants as k
from workers.controllers.capacity.publishing import publishing_of
from workers.controllers.provisioner import measure
from workers.controllers.provisioner.backend import backend_of
from workers.controllers.provisioner.intent import MARGIN_SECONDS, may_run_until
from workers.controllers.provisioner.own import own
from workers.engine.outcome import Outcome, blocked, done, retry, wait
from workers.engine.pausing import class_pause
from workers.engine.steps import Step
from workers.errors import AttemptError, IgnoredError, State
from workers.kube.errors import ConflictError, NotFoundError, RefusedError
from workers.migration.classes import class_to_csi, is_migrated
from workers.migration.plugins import in_tree_source
from workers.migration.to_csi import volume_to_csi
from workers.observability import trail
from workers.observability.requests import about_volume
from workers.queue.locks import stored_volume
from workers.topology.affinity import is_accessible
from workers.translate import capability
from workers.translate import secrets as secret_rules
from workers.translate import volumes as rules
from workers.translate.volume_facts import FinalizerAction

if TYPE_CHECKING:
    from workers.controllers.provisioner.own import Own
    from workers.drivers.driver import Driver
    from workers.engine.context import Runtime
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

_log = logging.getLogger(__name__)


def sync_volume(runtime: Runtime, driver: Driver, key: Key, lease: Lease) -> Outcome:
    """One pass over one PV."""
    return VolumePass(runtime, driver, key, lease).run()


def class_of(volume: JsonObject) -> str:
    """Name of the volume's class, "" for none."""
    return volume["spec"].get("storageClassName") or ""


@dataclass(slots=True)
class VolumePass:
    """One pass over one PV, under its lease."""

    runtime: Runtime
    driver: Driver
    key: Key
    lease: Lease

    @property
    def own(self) -> Own:
        """The provisioner's part of this process."""
        return own(self.runtime)

    def run(self) -> Outcome:
        """Decides and acts; raises only for failures of the system itself."""
        try:
            volume = self.runtime.kube.get_volume(self.key.object)
        except NotFoundError:
            return done("volume is gone")
        if not rules.is_ours(volume, self.driver.names):
            return done("volume of another provisioner")
        try:
            volume = self.keep_finalizer(volume)
        except (NotFoundError, ConflictError):  # a new one of that name has its own event
            return done("volume is gone")
        backend = backend_of(self.driver)
        if not rules.should_delete(
            volume,
            add_finalizer=backend.add_finalizer,
            is_guard_willing=backend.is_guard_willing(volume),
        ):
            return done("nothing to do")
        paused = class_pause(self.runtime, class_of(volume))
        return paused or self.overtaken() or self.being_cut(volume) or self.delete(volume)

    def being_cut(self, volume: JsonObject) -> Outcome | None:
        """Our snapshotter, in whichever process, may be cutting a snapshot of the volume."""
        if not self.driver.supports("CREATE_DELETE_SNAPSHOT"):
            return None
        try:
            migrated = in_tree_source(volume) is not None
            handle = rules.volume_handle(volume_to_csi(volume) if migrated else volume)
        except AttemptError:  # told by the deletion itself
            return None
        lock = stored_volume(self.driver.name, handle)
        busy = self.runtime.queue.acquire(self.lease, lock)
        return None if busy is None else blocked(busy, "a snapshot of it is being cut")

    def overtaken(self) -> Outcome | None:
        """A CreateVolume of a dead process may still run, and would make the volume once more."""
        record, _, _ = self.own.intents.opened(self.lease)
        until = may_run_until(record)
        seconds = until + MARGIN_SECONDS - self.runtime.now() if until else 0.0
        return wait(seconds, "an overtaken CreateVolume may still run") if seconds > 0 else None

    def keep_finalizer(self, volume: JsonObject) -> JsonObject:
        """L-072; the patched object is used from here on."""
        action = rules.finalizer_action(volume, add_finalizer=backend_of(self.driver).add_finalizer)
        if action is FinalizerAction.KEEP:
            return volume
        kube, metadata = self.runtime.effects.kube, volume["metadata"]
        self.runtime.effects.reach(Step.PATCH_FINALIZER, self.lease)
        is_missing = action is FinalizerAction.ADD
        patch = kube.add_volume_finalizer if is_missing else kube.remove_volume_finalizer
        return patch(metadata["name"], k.FINALIZER_VOLUME, uid=metadata["uid"])

    def delete(self, volume: JsonObject) -> Outcome:
        """The deletion and its outcomes (P-501, P-515, L-075)."""
        started = time.monotonic()
        try:
            backend_of(self.driver).delete(self, volume)
        except IgnoredError as error:
            return done(error.reason)
        except AttemptError as error:
            trail.note("error", error.message)
            _log.warning("deletion failed", extra={"err": error.message})
            self.runtime.metrics.delete_failed(volume)
            self.runtime.effects.event(
                volume,
                "Warning",
                k.REASON_VOLUME_FAILED_DELETE,
                error.message,
                component=self.driver.event_source,
            )
            return retry("delete failed")
        publishing = publishing_of(self.runtime)
        if publishing is not None:
            publishing.deleted(self.driver, volume)
        outcome = self.delete_object(volume)
        measure.deleted(self, volume, started)
        return outcome

    def delete_in_storage(self, volume: JsonObject) -> None:
        """Steps 2 to 8 of P-501."""
        migrated = in_tree_source(volume) is not None
        csi_volume = volume_to_csi(volume) if migrated else volume
        handle = rules.volume_handle(csi_volume)
        segments = self.driver.node_segments
        if segments is not None:
            rules.check_accessible(is_accessible=is_accessible(csi_volume, segments))
        capability.check_driver(
            self.driver.plugin_capabilities, self.driver.controller_capabilities
        )
        secrets = self.secrets(csi_volume, migrated=migrated)
        if self.driver.supports("PUBLISH_UNPUBLISH_VOLUME"):
            self.check_not_attached(volume)
        self.runtime.effects.reach(Step.DELETE_VOLUME, self.lease)
        try:
            with about_volume(is_migrated=migrated):
                self.runtime.effects.client(self.driver).delete_volume(
                    handle,
                    secrets,
                    timeout_seconds=self.driver.timeout_seconds("delete", class_of(volume)),
                )
        except CsiError as error:
            raise AttemptError(str(error), State.FINISHED, code=error.code) from None

    def check_not_attached(self, volume: JsonObject) -> None:
        """P-510, by the catalog's index of attachments."""
        name = volume["metadata"]["name"]
        attachment = self.runtime.catalog.attachment(name)
        if attachment:
            raise rules.still_attached(name, min(attachment.values()))

    def secrets(self, volume: JsonObject, *, migrated: bool) -> dict[str, str]:
        """The deletion's secret data, read now (P-511 to P-514)."""
        wanted = rules.deletion_secret(volume)
        if wanted.class_name:
            storage_class = self.own.safekeeping.storage_class(
                wanted.class_name, self.lease.catalog
            )
            if storage_class is None:
                missing = f'storageclass.storage.k8s.io "{wanted.class_name}" not found'
                _log.warning("%s", rules.class_missing_warning(wanted.class_name, missing))
                return {}
            if migrated and is_migrated(storage_class, self.driver.name):
                storage_class = class_to_csi(storage_class, self.driver.in_tree_name or "")
            wanted = rules.deletion_secret_of_class(volume, storage_class)
        if wanted.warning:
            _log.warning("%s", wanted.warning)
        if wanted.ref is None:
            return {}
        try:
            found = self.runtime.kube.get_secret(wanted.ref.namespace, wanted.ref.name)
        except NotFoundError as error:
            _log.warning("%s", rules.secret_read_failed(volume, error))
            return {}
        except RefusedError as error:
            # Only a missing secret may be deleted without; a refused read is not one (D-022).
            raise AttemptError(rules.secret_read_failed(volume, error), State.NO_CHANGE) from error
        return secret_rules.decode(found, wanted.ref)

    def delete_object(self, volume: JsonObject) -> Outcome:
        """The PV itself, then its finalizer (L-075, L-076)."""
        kube, metadata = self.runtime.effects.kube, volume["metadata"]
        name, uid = metadata["name"], metadata["uid"]
        self.runtime.effects.reach(Step.DELETE_OBJECT, self.lease)
        try:
            left = kube.delete_volume(name, uid=uid)
        except (NotFoundError, ConflictError):
            return done("volume is gone")
        finalizers = (left.get("metadata") or {}).get("finalizers") or []
        if k.FINALIZER_VOLUME in finalizers:
            self.runtime.effects.reach(Step.RELEASE_OBJECT, self.lease)
            with contextlib.suppress(NotFoundError, ConflictError):
                left = kube.remove_volume_finalizer(name, k.FINALIZER_VOLUME, uid=uid)
        # What we did to the object comes back as events; one pass for a deletion is enough.
        return done("deleted", known=(left.get("metadata") or {}).get("resourceVersion", ""))
