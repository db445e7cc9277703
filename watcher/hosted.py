"""A controller's rules in the watcher: called under a lock; what they say goes to the outbox."""

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
    """One controller.

    Args:
        spec: what it is.
        outbox: where its keys go.

    Attributes:
        records: of its drivers, as the rules were told last.
    """

    def __init__(self, spec: Spec, outbox: Outbox) -> None:
        self.spec = spec
        self.records: Records = ()
        self.rules = spec.make_rules()
        self._outbox = outbox
        # One for all methods: reflectors, keeper and resync call from threads of their own.
        self._lock = threading.RLock()

    def set_records(self, records: Records) -> None:
        """Tell the rules which drivers the controller has."""
        with self._lock:
            self.records = records
            told = tuple(self.rules.set_drivers(records))
        self._send(told)

    def all_keys(self) -> list[Key]:
        """Return the keys of everything undecided."""
        with self._lock:
            return list(self.rules.all_keys())

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> None:
        """Tell the rules of an object as it is now."""
        with self._lock:
            told = tuple(self.rules.seen(resource, item, is_listed=is_listed))
        # A list comes after a gap: what it says is said again, whatever was added before.
        self._send(told, None if is_listed else resource, item)

    def gone(self, resource: Resource, item: Any) -> None:
        """Tell the rules of a deletion."""
        with self._lock:
            told = tuple(self.rules.gone(resource, item))
        self._send(told, resource, item)

    def begin_list(self, resource: Resource) -> None:
        """Tell the rules that a list starts."""
        with self._lock:
            self.rules.begin_list(resource)

    def end_list(self, resource: Resource) -> None:
        """Tell the rules that the list is complete."""
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
        """Return the event's resourceVersion if the key is about this very object, else "".

        With it the queue takes the other watcher's copy of the event for what it is (COR-15).
        """
        kind = next((kind for kind in self.spec.kinds if kind.name == key.kind), None)
        if kind is None or kind.subject is None or kind.subject != resource:
            return ""
        meta = item.metadata
        name = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
        # A volume's key has its claim's namespace in the place of the UID.
        is_same = key.object == name and (key.uid in {"", meta.uid} or key.uid.startswith("@"))
        return str(meta.resource_version) if is_same else ""


class RulesSink:
    """One resource -> one controller's rules."""

    def __init__(self, hosted: Hosted, resource: Resource) -> None:
        self._hosted = hosted
        self._resource = resource

    def begin_list(self) -> None:
        """A list starts."""
        self._hosted.begin_list(self._resource)

    def listed(self, item: Any) -> None:
        """One object of a list."""
        self._hosted.seen(self._resource, item, is_listed=True)

    def end_list(self, resource_version: str) -> None:  # noqa: ARG002 - the sink's form
        """The list is complete."""
        self._hosted.end_list(self._resource)

    def changed(self, item: Any) -> None:
        """An object is new or changed."""
        self._hosted.seen(self._resource, item, is_listed=False)

    def deleted(self, item: Any) -> None:
        """An object is gone."""
        self._hosted.gone(self._resource, item)


class ScopedSink:
    """One part of a resource -> one controller's rules, which hear of no lists.

    A list of one part says nothing of the others, so what it lacks is found here and told as
    deletions. Keeps identity and labels of each object; for resources with few.
    """

    def __init__(self, hosted: Hosted, resource: Resource) -> None:
        self._hosted = hosted
        self._resource = resource
        self._known: dict[str, AnyObject] = {}
        self._listed: dict[str, AnyObject] = {}

    def begin_list(self) -> None:
        """Start to note which objects still exist."""
        self._listed = {}

    def listed(self, item: Any) -> None:
        """Note one object."""
        self._listed[item.metadata.uid] = _kept(item)
        self._hosted.seen(self._resource, item, is_listed=True)

    def end_list(self, resource_version: str) -> None:  # noqa: ARG002 - the sink's form
        """Treat the others as deleted."""
        gone = [item for uid, item in self._known.items() if uid not in self._listed]
        self._known, self._listed = self._listed, {}
        for item in gone:
            self._hosted.gone(self._resource, item)

    def changed(self, item: Any) -> None:
        """Note one object."""
        self._known[item.metadata.uid] = _kept(item)
        self._hosted.seen(self._resource, item, is_listed=False)

    def deleted(self, item: Any) -> None:
        """Tell of it as it was known: its labels may be what went."""
        known = self._known.pop(item.metadata.uid, None)
        self._hosted.gone(self._resource, known or item)


def _kept(item: Any) -> AnyObject:
    return AnyObject(msgspec.structs.replace(item.metadata, annotations=None, finalizers=None))
