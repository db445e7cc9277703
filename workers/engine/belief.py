"""Decides whether a record's attempt is still open, before the record alone leads to an effect.

A record in Redis proves who wrote it, not that its attempt is open: any Redis user can keep the
bytes and write them back later. So the API server decides, because no Redis user can write to it:

1. The record of an object that is gone is believed while its copy in a ConfigMap exists: it is
   removed before the attempt ends. It is also believed if the API server still remembers the
   deletion, and the object had no volume or snapshot by then. If the object had its result by
   then, its attempt has ended and the record is dropped. Any other record is left to a person.
2. A volume or snapshot that a live object names is in use, whatever a record says of it.

`doubt_about` is called before each effect that follows from a deleted object's record. `user_of` is
called before the storage deletes a volume or snapshot, or a PersistentVolume is saved, for such a
record. Unpublishing a volume whose attachment is gone calls `user_of` alone: it deletes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.kube.errors import ApiError, AwayError
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource
    from workers.kube.reading import KubeReader

_log = get_logger(__name__)

DELETED: Final = "DELETED"
ENDED: Final = "its attempt ended long ago"


@dataclass(frozen=True, slots=True)
class Vanished:
    """A deleted object that a record names.

    Attributes:
        resource: its kind.
        name: its name.
        namespace: "" for a cluster-scoped kind.
        is_it: returns True if an object of that name is this one.
        has_result: returns True if the object named the result of its attempt.
    """

    resource: Resource
    name: str
    namespace: str
    is_it: Callable[[JsonObject], bool]
    has_result: Callable[[JsonObject], bool]


def doubt_about(
    kube: KubeReader, vanished: Vanished, *, has_copy: Callable[[], bool], since: Iterable[int]
) -> str:
    """Return why the record of a deleted object is not believed; "" if its attempt is open.

    The reason is `ENDED` if the API server remembers that the object had its result.

    Args:
        kube: reads live.
        vanished: the object.
        has_copy: asks the API server for the attempt's ConfigMap.
        since: the known resourceVersions from before the deletion. They may come from Redis: a
            wrong version finds no deletion.

    Raises:
        AwayError: the API server does not answer.
    """
    if has_copy():
        return ""
    for version in since:
        if version > 0 and (last := _last_state(kube, vanished, version)) is not None:
            return ENDED if vanished.has_result(last) else ""
    return "nothing in the API server shows that its attempt is still open"


def _last_state(kube: KubeReader, vanished: Vanished, version: int) -> JsonObject | None:
    """Return the object as it was deleted; None if the API server has forgotten the deletion."""
    resource, name = vanished.resource, vanished.name
    try:
        for event, item in kube.past(resource, name, namespace=vanished.namespace, since=version):
            if event == DELETED and vanished.is_it(item):
                return item
    except AwayError:
        raise
    except ApiError as error:  # too long ago, or no permission to watch
        _log.warning("the deletion cannot be looked up", resource=resource.plural, err=error)
    return None


def user_of(kube: KubeReader, resource: Resource, names_it: Callable[[JsonObject], bool]) -> str:
    """Return the name of a live object that names a volume, snapshot or publication; "" for none.

    It lists all objects of the kind, so call it only before an effect that a record alone causes.
    """
    found = next((item for item in kube.list(resource) if names_it(item)), None)
    return found["metadata"]["name"] if found is not None else ""
