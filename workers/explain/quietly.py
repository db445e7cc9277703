"""Reads facts that an explanation can do without, in case the user is not allowed to read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from workers.errors import ApiError
from workers.kube.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


def quietly(read: Callable[[], T], default: T) -> T:
    """Return `read()`, or `default` if the API server refuses, for example for lack of permission.

    Raises:
        Unreachable: the API server does not answer.
    """
    try:
        return read()
    except Unreachable:
        raise
    except ApiError:
        return default


def quiet_list(read: Callable[[], Iterable[T]]) -> list[T]:
    """Return the objects that `read()` yields, or [] if the API server refuses to list them.

    Raises:
        Unreachable: the API server does not answer.
    """
    nothing: list[T] = []
    return quietly(lambda: list(read()), nothing)
