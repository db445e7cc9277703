"""Does anybody know a driver of that name? A mistyped one must not pass for one without work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.errors import ApiError, ConfigError
from workers.explain.words import named, nearest
from workers.kube import paths

if TYPE_CHECKING:
    from workers.cli.tools import Tools


def served(tools: Tools, driver: str) -> dict[str, dict[str, object]]:
    """The records of a driver by queue name: one, or one per node; none while nobody serves it.

    Raises:
        ConfigError: nobody knows this name, so it is a mistake: the right one would go on.
    """
    records = tools.registry.alive()
    found = {name: one for name, one in sorted(records.items()) if one.get("name") == driver}
    if found:
        return found
    waiting = {lane.partition("|")[2] for lane in tools.queue.stats()}
    if driver not in waiting and driver not in (others := _provisioners(tools)) and others:
        hint = nearest(driver, {*records, *waiting, *others})
        raise ConfigError(
            f'driver "{driver}" is not known: no worker serves it and no storage class names it '
            f"(served: {shown(records)}).{hint}",
            exit_code=1,
        )
    return {}


def shown(names: dict[str, dict[str, object]]) -> str:
    """The served drivers in a line."""
    return ", ".join(named(names)) or "none"


def _provisioners(tools: Tools) -> set[str]:
    """Those that classes name; nothing when the API server cannot be asked: a pause must work."""
    try:
        return {str(one.get("provisioner")) for one in tools.kube.list(paths.STORAGE_CLASSES)}
    except (ApiError, ConfigError):
        return set()
