"""Runs a controller's rules in the watcher, under a lock, and passes their keys to the outbox."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec

from workers.kube.objects import AnyObject
from workers.spec import Forget

if TYPE_CHECKING:
    from collections.abc import Iterable

    from watcher.outbox import Outbox
    from workers.kube.paths import Resource
    from workers.queue.keys import Key
    from workers.spec import Records, Spec, Told


class Hosted:
    """The rules of one controller, and a lock that is held while they are called.

    Args:
        spec: the controller's description.
        outbox: receives the controller's keys.

    Attributes:
        records: the records of the controller's drivers, as last passed to the rules.
    """

    def __init__(self, spec: Spec, outbox: Outbox) -> None:
        self.spec = spec
        self.records: Records = ()
        self.rules = spec.make_rules()
        self._outbox = outbox
        # The lock is needed because the reflectors, the keeper and the resync call from different
        # threads.
        self._lock = threading.RLock()

    def set_records(self, records: Records) -> None:
        """Pass the records of the controller's drivers to the rules."""
        with self._lock:
            self.records = records
            told = tuple(self.rules.set_drivers(records))
        self._send(told)

    def all_keys(self) -> list[Key]:
        """Return the keys of all objects that need work."""
        with self._lock:
            return list(self.rules.all_keys())

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> None:
        """Pass the current state of an object to the rules."""
        with self._lock:
            told = tuple(self.rules.seen(resource, item, is_listed=is_listed))
        # A list follows a gap, so its keys are added even if they were already added for the same
        # version of the object.
        self._send(told, None if is_listed else resource, item)

    def gone(self, resource: Resource, item: Any) -> None:
        """Pass a deleted object to the rules."""
        with self._lock:
            told = tuple(self.rules.gone(resource, item))
        self._send(told, resource, item)

    def begin_list(self, resource: Resource) -> None:
        """Notify the rules that a list starts."""
        with self._lock:
            self.rules.begin_list(resource)

    def end_list(self, resource: Resource) -> None:
        """Notify the rules that the list is complete."""
        with self._lock:
            told = tuple(self.rules.end_list(resource))
        self._send(told)

    def _send(
        self, told: Iterable[Told], resource: Resource | None = None, item: Any = None
    ) -> None:
        for one in told:
            if isinstance(one, Forget):
                self._outbox.forget([one.key])
            else:
                self._outbox.add([one], version=self._version(one, resource, item))

    def _version(self, key: Key, resource: Resource | None, item: Any) -> str:
        """Return the event's resourceVersion if the key belongs to this very object, otherwise "".

        It lets the queue ignore the same event from another watcher.
        """
        kind = next((kind for kind in self.spec.kinds if kind.name == key.kind), None)
        if kind is None or kind.subject is None or kind.subject != resource:
            return ""
        meta = item.metadata
        # The key of a volume has its claim's namespace, marked by @, in place of the UID.
        is_same = key.uid in {"", meta.uid} or key.uid.startswith("@")
        return str(meta.resource_version) if is_same and key.object == meta.full_name else ""


class RulesSink:
    """Passes one resource to the rules of one controller."""

    def __init__(self, hosted: Hosted, resource: Resource) -> None:
        self._hosted = hosted
        self._resource = resource

    def begin_list(self) -> None:
        """Pass on the start of a list."""
        self._hosted.begin_list(self._resource)

    def listed(self, item: Any) -> None:
        """Pass on one object of a list."""
        self._hosted.seen(self._resource, item, is_listed=True)

    def end_list(self, resource_version: str) -> None:  # noqa: ARG002 - the sink's interface
        """Pass on the end of a list."""
        self._hosted.end_list(self._resource)

    def changed(self, item: Any) -> None:
        """Pass on a new or changed object."""
        self._hosted.seen(self._resource, item, is_listed=False)

    def deleted(self, item: Any) -> None:
        """Pass on a deleted object."""
        self._hosted.gone(self._resource, item)


class ScopedSink:
    """Passes one part of a resource to one controller's rules.

    Unlike RulesSink, it does not pass on the starts and ends of lists, because a list of one part
    does not cover the other parts. Instead, it finds the objects that are missing from the list
    itself, and reports them as deleted. It keeps the identity and labels of each object, so it
    should be used only for resources with few objects.
    """

    def __init__(self, hosted: Hosted, resource: Resource) -> None:
        self._hosted = hosted
        self._resource = resource
        self._known: dict[str, AnyObject] = {}
        self._listed: dict[str, AnyObject] = {}

    def begin_list(self) -> None:
        """Start collecting the existing objects."""
        self._listed = {}

    def listed(self, item: Any) -> None:
        """Collect one object and pass it to the rules."""
        self._listed[item.metadata.uid] = _kept(item)
        self._hosted.seen(self._resource, item, is_listed=True)

    def end_list(self, resource_version: str) -> None:  # noqa: ARG002 - the sink's interface
        """Report the known objects that were not in the list as deleted."""
        gone = [item for uid, item in self._known.items() if uid not in self._listed]
        self._known, self._listed = self._listed, {}
        for item in gone:
            self._hosted.gone(self._resource, item)

    def changed(self, item: Any) -> None:
        """Record a new or changed object and pass it to the rules."""
        self._known[item.metadata.uid] = _kept(item)
        self._hosted.seen(self._resource, item, is_listed=False)

    def deleted(self, item: Any) -> None:
        """Report an object as deleted, as it was last seen.

        It may have left the watch because its labels changed.
        """
        known = self._known.pop(item.metadata.uid, None)
        self._hosted.gone(self._resource, known or item)


def _kept(item: Any) -> AnyObject:
    return AnyObject(msgspec.structs.replace(item.metadata, annotations=None, finalizers=None))
