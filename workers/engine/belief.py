"""Decides whether a record's attempt is still open, before an effect is based on the record alone.

A record in Redis proves who wrote it, but not that its attempt is open: any Redis user can keep a
copy of the bytes and write them back later. So the API server decides, because no Redis user can
write to it:

1. If an object is gone, its record is trusted while a ConfigMap with a copy of the record exists:
the copy is removed before the attempt ends. The record is also trusted if the API server's history
still contains the deletion and the deleted object had no volume or snapshot. If the deleted object
had its result, the attempt has ended and the record is dropped. Any other record is left to an
operator.
2. A volume or snapshot that a live object names is in use, whatever a record says about it.

`doubt_about` is called before each effect that follows from the record of a deleted object.
`user_of` is called before such a record, or an unusable response, causes a volume or snapshot to be
deleted from the storage system, or a PersistentVolume to be saved: a driver may have named another
call's volume. Before a volume is unpublished because its attachment is gone, only `user_of` is
called, because unpublishing deletes nothing.
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
        resource: the kind of the object.
        name: the object's name.
        namespace: the object's namespace, "" for a cluster-scoped kind.
        is_it: called with an object that has that name; returns True if the record refers to
            this very object.
        has_result: called with the object; returns True if it names the result of its attempt.
    """

    resource: Resource
    name: str
    namespace: str
    is_it: Callable[[JsonObject], bool]
    has_result: Callable[[JsonObject], bool]


def doubt_about(
    kube: KubeReader, vanished: Vanished, *, has_copy: Callable[[], bool], since: Iterable[int]
) -> str:
    """Return why the record of a deleted object is not trusted; "" if its attempt is still open.

    The reason is `ENDED` if the API server can still prove that the object had its result.

    Args:
        kube: reads objects live from the API server.
        vanished: the deleted object.
        has_copy: asks the API server whether the attempt's ConfigMap exists.
        since: known resourceVersions from before the deletion. They may come from Redis: the worst
            that a wrong version can do is that no deletion is found.

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
    """Return the object as it was when it was deleted; None if the API server no longer has it."""
    resource, name = vanished.resource, vanished.name
    try:
        for event, item in kube.past(resource, name, namespace=vanished.namespace, since=version):
            if event == DELETED and vanished.is_it(item):
                return item
    except AwayError:
        raise
    except ApiError as error:  # too long ago, or no permission to watch
        _log.warning(
            "could not check whether the object was deleted", resource=resource.plural, err=error
        )
    return None


def user_of(kube: KubeReader, resource: Resource, names_it: Callable[[JsonObject], bool]) -> str:
    """Return the name of a live object that satisfies `names_it`; "" if there is none.

    This lists all objects of the kind, so call it only before an effect that no live object
    requires.
    """
    found = kube.find_together(resource, names_it)
    return found["metadata"]["name"] if found is not None else ""
