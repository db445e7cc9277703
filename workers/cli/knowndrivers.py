"""Checks names of drivers and namespaces.

Otherwise a mistyped name would be mistaken for a driver or a namespace without work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.errors import ApiError, ConfigError
from workers.explain.words import named, nearest
from workers.kube import paths
from workers.kube.errors import NotFoundError

if TYPE_CHECKING:
    from workers.cli.tools import Tools


def served(tools: Tools, driver: str) -> dict[str, dict[str, object]]:
    """Return a driver's registrations by queue name; {} if no worker serves the driver.

    A driver that runs on each node has one queue per node.

    Raises:
        ConfigError: no worker, queue or storage class names such a driver.
    """
    records = tools.registry.alive()
    found = {name: one for name, one in sorted(records.items()) if one.get("name") == driver}
    if found:
        return found
    waiting = {lane.partition("|")[2] for lane in tools.queue.stats()}
    if driver not in waiting and driver not in (others := _provisioners(tools)) and others:
        hint = nearest(driver, {*records, *waiting, *others})
        raise ConfigError(
            f'driver "{driver}" is unknown: no worker serves it, and no storage class names it '
            f"(served: {shown(records)}).{hint}",
            exit_code=1,
        )
    return {}


def shown(names: dict[str, dict[str, object]]) -> str:
    """Return the names of the served drivers in one line."""
    return ", ".join(named(names)) or "none"


def there(tools: Tools, namespace: str) -> None:
    """Check that a namespace exists; do nothing if the API server cannot tell.

    Raises:
        ConfigError: there is no such namespace.
    """
    try:
        tools.kube.get(paths.NAMESPACES, namespace)
    except NotFoundError:
        hint = nearest(namespace, _namespaces(tools))
        raise ConfigError(f"there is no namespace {namespace}.{hint}", exit_code=1) from None
    except (ApiError, ConfigError):
        return


def _namespaces(tools: Tools) -> set[str]:
    try:
        return {one["metadata"]["name"] for one in tools.kube.list(paths.NAMESPACES)}
    except ApiError:
        return set()


def _provisioners(tools: Tools) -> set[str]:
    """Return the provisioners of all classes, or none if the API server fails.

    A failure is not raised, so that drivers can still be paused.
    """
    try:
        return {str(one.get("provisioner")) for one in tools.kube.list(paths.STORAGE_CLASSES)}
    except (ApiError, ConfigError):
        return set()
