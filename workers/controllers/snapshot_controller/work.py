"""One pass over one snapshot (or group snapshot): what it works on, and each of its effects.

Single members are merged in with the version that was read, never whole objects, so that neither a
stale copy nor another program's write gets lost (SND-003, SND-015). On a conflict the object is
read and decided about again (SNQ-006).
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


class Gone(Exception):  # noqa: N818 - an end of the pass, not a failure
    """The object is not there any more, or another one has its name."""


class Busy(Exception):  # noqa: N818 - an end of the pass, not a failure
    """Somebody else holds a lock."""

    def __init__(self, lock: Lock) -> None:
        super().__init__(lock.name)
        self.lock = lock

    def outcome(self) -> Outcome:
        """The key comes back when the lock is free."""
        return blocked(self.lock, f"{self.lock.name} is busy")


@dataclass
class ObjectPass:
    """An object while one pass lasts; `item` is always as last read or written."""

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
        """Announce an effect; raises LeaseLost if the object has another owner by now."""
        self.context.effects.reach(step, self.lease)

    def acquire(self, *locks: Lock) -> None:
        """Take locks until the end of the pass.

        Raises:
            Busy: somebody else holds one of them.
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
        """Any object, None if there is none of that name.

        Raises:
            ApiError: it cannot be read; also while its kind is not served.
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
        """A VolumeSnapshotContent."""
        return self.find(paths.SNAPSHOT_CONTENTS, name)

    # Writing.

    def write(
        self, step: str, change: Callable[[JsonObject], JsonObject | None], *, status: bool = False
    ) -> bool:
        """Change the object; `change` gets it as it is and returns a merge patch or None.

        Returns:
            Whether anything was written.

        Raises:
            Gone: it is not there any more.
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
        """Change any object; as `write`, and returns it as it is now."""
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
        """Write a status; `change` returns all of it, or None.

        Returns:
            The object before and after, None when nothing was written.
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
        """Append finalizers that are not there yet."""

        def patch(item: JsonObject) -> JsonObject | None:
            known = text_list(item, "metadata", "finalizers")
            new = [name for name in missing if name not in known]
            return {"metadata": {"finalizers": [*known, *new]}} if new else None

        if missing:
            self.write(step, patch)

    # Telling.

    def event(self, kind: Any, reason: str, message: str, item: JsonObject | None = None) -> None:
        """An event on the object (SND-015: always on the known object)."""
        if kind == "Warning":
            trail.note("error", message)
            _log.warning("attempt failed", reason=reason, err=message)
        involved = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        self.context.effects.event(
            involved | (item or self.item), kind, reason, message, component=COMPONENT
        )

    def blame(self, refusal: Refusal) -> None:
        """Error status and event; of a text that is stored already only the unset ready (SNC-031).

        The event follows whatever becomes of the status, as upstream's does. A status that the API
        server refuses stays as it is: `item` tells.
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
        """Again after the back-off of this controller's settings (SNA-008)."""
        return replace(
            retry(reason),
            base_seconds=self.settings.retry_start_seconds,
            cap_seconds=self.settings.retry_max_seconds,
        )
