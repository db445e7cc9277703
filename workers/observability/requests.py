"""Counts calls to the API server and to drivers, and notes them in the reconcile's history."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Final

from workers.observability import tracing, trail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workers.observability.metrics import Metrics

# The number of path segments before the resource: /api/v1/... and /apis/<group>/<version>/...
_CORE_SEGMENTS: Final = 2
_GROUP_SEGMENTS: Final = 3
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

_MIGRATED: Final = ContextVar("migrated", default=False)


def resource_of(url: str) -> tuple[str, str]:
    """Return the resource's plural and the object's name (or "") in an API path.

    For a path without a resource, the plural is "discovery". Example:

    `/api/v1/namespaces/shop/persistentvolumeclaims/data?x=y` -> `persistentvolumeclaims`, `data`.
    """
    parts = [part for part in url.partition("?")[0].split("/") if part]
    rest = parts[_CORE_SEGMENTS if parts[:1] == ["api"] else _GROUP_SEGMENTS :]
    if rest[:1] == ["namespaces"] and len(rest) > _CORE_SEGMENTS:
        rest = rest[2:]
    if not rest:
        return "discovery", ""
    return rest[0], rest[1] if len(rest) > 1 else ""


def api_observer(metrics: Metrics) -> Callable[[str, str, int, float], None]:
    """Return an observer of API requests.

    The observer's arguments are the method, the path, the status and the duration in seconds. The
    status is 0 if there was no response. A watch is observed only if it could not be opened.
    """

    def observe(method: str, url: str, status: int, seconds: float) -> None:
        resource, name = resource_of(url)
        verb = _VERBS.get(method) or ("get" if name else "list")
        if "watch=1" in url:
            verb = "watch"
        metrics.api_requests.labels(verb, resource, str(status)).inc()
        metrics.api_seconds.labels(verb, resource).observe(seconds)
        is_error = not 0 < status < 400 and status != 404
        tracing.call(
            f"{verb} {resource}",
            seconds,
            is_error=is_error,
            http__request__method=method,
            http__response__status_code=status,
        )
        if method != "GET":
            answer = status or "no-answer"
            trail.note("api", f"{verb} {resource} {answer} {seconds:.3f}")

    return observe


@contextmanager
def about_volume(*, is_migrated: bool) -> Iterator[None]:
    """Record whether this thread's calls inside the block are about an in-tree volume (A-072)."""
    token = _MIGRATED.set(is_migrated)
    try:
        yield
    finally:
        _MIGRATED.reset(token)


def csi_observer(
    metrics: Metrics, replaces_in_tree: Callable[[str], bool] = lambda _: False
) -> Callable[[str, str, str | None, float], None]:
    """Return an observer of driver calls.

    The observer's arguments are the driver, the method, the status code as Go spells it, and the
    duration in seconds.

    Args:
        metrics: counts the calls.
        replaces_in_tree: returns True for a driver's name if its calls get the label `migrated`
            (P-009).
    """
    observer_of = cache(metrics.csi_observer)

    def observe(driver: str, method: str, code: str | None, seconds: float) -> None:
        migrated = _MIGRATED.get() if replaces_in_tree(driver) else None
        observer_of(driver, migrated=migrated)(method, code, seconds)
        name = method.rpartition("/")[2]
        tracing.call(
            name,
            seconds,
            is_error=code != "OK",
            rpc__system="grpc",
            rpc__response__status_code=code or "NoStatus",
        )
        trail.note("rpc", f"{name} {code or 'NoStatus'} {seconds:.3f}")

    return observe
