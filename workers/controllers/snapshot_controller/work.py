"""Holds the object of one reconcile of a snapshot or group snapshot, and writes its changes.

A write patches single fields and carries the resourceVersion that was read. So it never overwrites
another program's write, nor writes back a stale object (SND-003, SND-015). After a conflict the
object is read and decided about again (SNQ-006).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from workers.engine.outcome import Outcome, blocked, retry
from workers.kube import paths
from workers.kube.errors import ConflictError, NotFoundError, RefusedError
from workers.kube.merging import difference
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.translate import snapshot_objects as objects
from workers.translate.fields import text_list
from workers.translate.snapshot_status import error_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.controllers.snapshot_controller.decide import Refusal
    from workers.controllers.snapshot_controller.settings import SnapshotControllerSettings
    from workers.engine.context import Context
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource
    from workers.queue.keys import Key
    from workers.queue.leases import Lease
    from workers.queue.locks import Lock

_log = get_logger(__name__)

COMPONENT: Final = "snapshot-controller"
_MAX_ATTEMPTS: Final = 3


class Gone(Exception):  # noqa: N818 - an end of the reconcile, not a failure
    """The object no longer exists, or another object has its name."""


class Busy(Exception):  # noqa: N818 - an end of the reconcile, not a failure
    """Another key holds a lock that the reconcile needs."""

    def __init__(self, lock: Lock) -> None:
        super().__init__(lock.name)
        self.lock = lock

    def outcome(self) -> Outcome:
        """Returns the outcome that waits for the lock."""
        return blocked(self.lock, f"{self.lock.name} is busy")


@dataclass
class ObjectPass:
    """An object during one reconcile; `item` is always as last read or written."""

    context: Context
    key: Key
    lease: Lease
    resource: Resource
    item: JsonObject = field(default_factory=dict)

    @property
    def settings(self) -> SnapshotControllerSettings:
        """The controller's own settings."""
        found: SnapshotControllerSettings = self.context.settings.controllers["snapshot-controller"]
        return found

    @property
    def namespace(self) -> str:
        """The namespace in the key, "" for cluster-scoped objects."""
        return self.key.object.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The name in the key."""
        return self.key.object.rpartition("/")[2]

    def reach(self, step: str) -> None:
        """Reports the step before an effect; raises LeaseLost if another worker has the lease."""
        self.context.effects.reach(step, self.lease)

    def acquire(self, *locks: Lock) -> None:
        """Takes locks until the end of the reconcile.

        Raises:
            Busy: another key holds one of them.
        """
        taken = self.context.queue.acquire(self.lease, *locks)
        if taken is not None:
            raise Busy(taken)

    # Reading.

    def read(self) -> bool:
        """Read the object live; False if it is gone."""
        found = self.find(self.resource, self.name, self.namespace)
        if found is not None:
            self.item = found
        return found is not None

    def find(self, resource: Resource, name: str, namespace: str = "") -> JsonObject | None:
        """Reads any object; None if there is none of that name.

        Raises:
            ApiError: the object cannot be read, or its kind is not served.
        """
        if not name:
            return None
        try:
            found = self.context.kube.get(resource, name, namespace=namespace)
        except NotFoundError as error:
            if not error.is_about(name):
                raise
            return None
        return {"apiVersion": resource.api_version, "kind": resource.kind, **found}

    def find_content(self, name: str) -> JsonObject | None:
        """Reads a VolumeSnapshotContent; None if there is none of that name."""
        return self.find(paths.SNAPSHOT_CONTENTS, name)

    # Writing.

    def write(
        self, step: str, change: Callable[[JsonObject], JsonObject | None], *, status: bool = False
    ) -> bool:
        """Patches the object; `change` gets the object and returns a merge patch or None.

        Returns:
            True if anything was written.

        Raises:
            Gone: the object no longer exists.
            ApiError: the API server refused.
        """
        self.item, is_written = self.write_to(self.resource, self.item, step, change, status=status)
        return is_written

    def write_to(
        self,
        resource: Resource,
        item: JsonObject,
        step: str,
        change: Callable[[JsonObject], JsonObject | None],
        *,
        status: bool = False,
    ) -> tuple[JsonObject, bool]:
        """Patches any object like `write`; returns the object, and True if it was written."""
        for attempts_left in range(_MAX_ATTEMPTS - 1, -1, -1):
            patch = change(item)
            if patch is None:
                return item, False
            self.reach(step)
            try:
                return (
                    self.context.effects.kube.merge(
                        resource, item, patch, status=status, is_exact=True
                    ),
                    True,
                )
            except NotFoundError as error:
                if error.is_about(objects.name_of(item)):
                    raise Gone from None
                raise
            except ConflictError:
                if not attempts_left:
                    raise
                item = self._again(resource, item)
        raise AssertionError

    def _again(self, resource: Resource, item: JsonObject) -> JsonObject:
        found = self.find(resource, objects.name_of(item), objects.namespace_of(item))
        if found is None or objects.uid_of(found) != objects.uid_of(item):
            raise Gone
        return found

    def write_status(
        self, step: str, change: Callable[[JsonObject], JsonObject | None]
    ) -> tuple[JsonObject, JsonObject] | None:
        """Writes a status; `change` gets the object and returns the whole status, or None.

        Returns:
            The object before and after; None if nothing was written.
        """
        before: list[JsonObject] = []

        def patch(item: JsonObject) -> JsonObject | None:
            new = change(item)
            if new is None:
                return None
            before[:] = [item]
            return {"status": difference(item.get("status") or {}, new)}

        is_written = self.write(step, patch, status=True)
        return (before[0], self.item) if is_written else None

    def add_finalizers(self, step: str, missing: list[str]) -> None:
        """Adds the finalizers that the object does not have yet."""

        def patch(item: JsonObject) -> JsonObject | None:
            known = text_list(item, "metadata", "finalizers")
            new = [name for name in missing if name not in known]
            return {"metadata": {"finalizers": [*known, *new]}} if new else None

        if missing:
            self.write(step, patch)

    # Events.

    def event(self, kind: Any, reason: str, message: str, item: JsonObject | None = None) -> None:
        """Records an event on `item`, by default on the object as last read (SND-015)."""
        if kind == "Warning":
            trail.note("error", message)
            _log.warning("attempt failed", reason=reason, err=message)
        involved = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        self.context.effects.event(
            involved | (item or self.item), kind, reason, message, component=COMPONENT
        )

    def blame(self, refusal: Refusal) -> None:
        """Writes the error to the status and an event (SNC-031).

        If the text is in the status already, only readyToUse is unset and no event is recorded. As
        in snapshot-controller, the event is recorded even if the status cannot be written; `item`
        then still has the old status.
        """
        message = refusal.message
        if not refusal.reason:
            return
        is_known = objects.error_message(self.item) == message
        error = error_of(message, time.time())

        def change(item: JsonObject) -> JsonObject | None:
            old = item.get("status") or {}
            new: JsonObject = {}
            if objects.error_message(item) != message:
                new["error"] = error
            if refusal.unsets_ready and (new or objects.is_ready(item)):
                new["readyToUse"] = False
            return {**old, **new} if new else None

        try:
            self.write_status("write-error", change)
        except RefusedError as problem:
            _log.warning("error not stored", err=problem)
        finally:
            if is_known:
                trail.note("error", message)
            else:
                self.event("Warning", refusal.reason, message)

    def failed(self, reason: str) -> Outcome:
        """Retries with the back-off of this controller's settings (SNA-008)."""
        return replace(
            retry(reason),
            base_seconds=self.settings.retry_start_seconds,
            cap_seconds=self.settings.retry_max_seconds,
        )
