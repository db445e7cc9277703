"""Passes one watched resource to several receivers: controllers' rules and the shared cache.

A receiver that joins later gets nothing until the next list starts, so that it never has incomplete
data. If one receiver fails on an object, the others still receive it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.kube.watch import Sink

_log = get_logger(__name__)

T = TypeVar("T")


class FanOut(Generic[T]):
    """Passes all calls on to all receivers.

    Args:
        path: the API path of the resource, for the log.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._members: dict[str, Sink[T]] = {}
        self._listening: tuple[tuple[str, Sink[T]], ...] = ()

    def join(self, name: str, make: Callable[[], Sink[T]]) -> bool:
        """Add a receiver, unless there is already one with this name.

        Return True if the receiver was added. The resource must then be listed again.
        """
        if name in self._members:
            return False
        # The dict is replaced, not modified, because the reflector's thread may be reading it.
        self._members = {**self._members, name: make()}
        return True

    def begin_list(self) -> None:
        """Pass on the start of a list, also to receivers that have joined since the last list."""
        self._listening = tuple(self._members.items())
        self._tell(lambda sink: sink.begin_list())

    def listed(self, item: T) -> None:
        """Pass on one object of a list."""
        self._tell(lambda sink: sink.listed(item))

    def end_list(self, resource_version: str) -> None:
        """Pass on the end of a list."""
        self._tell(lambda sink: sink.end_list(resource_version))

    def changed(self, item: T) -> None:
        """Pass on a new or changed object.

        Raises:
            Exception: a receiver failed; the reflector then lists again, which repairs the gap.
        """
        self._raise(self._tell(lambda sink: sink.changed(item)))

    def deleted(self, item: T) -> None:
        """Pass on a deleted object; raises the same exceptions as `changed`."""
        self._raise(self._tell(lambda sink: sink.deleted(item)))

    def _tell(self, say: Callable[[Sink[T]], Any]) -> list[Exception]:
        errors: list[Exception] = []
        for name, sink in self._listening:
            try:
                say(sink)
            except Exception as error:  # noqa: BLE001 - one defect must not starve the others
                _log.exception(
                    "a controller's rule failed for an object", path=self._path, rules=name
                )
                errors.append(error)
        return errors

    @staticmethod
    def _raise(errors: list[Exception]) -> None:
        if errors:
            raise errors[0]
