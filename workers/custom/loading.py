"""Loads a plug-in by the name of an entry point, or by `module:attribute`.

The loaded object is a provisioner, or a class or function that returns one when called without
arguments.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, cast

from workers.custom.driver import custom_driver
from workers.errors import ConfigError
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.config.settings import Settings
    from workers.custom.api import Provisioner
    from workers.custom.driver import CustomDriver

_log = get_logger(__name__)

GROUP: Final = "csi_fleet.provisioners"


def load(reference: str) -> Provisioner:
    """Find and create one provisioner.

    Raises:
        ConfigError: the provisioner is not found or cannot be created; the message gives the
            reason.
    """
    found = _attribute(reference) if ":" in reference else _entry_point(reference)
    if not isinstance(found, type) and hasattr(found, "provision"):
        return cast("Provisioner", found)
    if not callable(found):
        raise ConfigError(
            f"--provisioner {reference}: the object is neither a provisioner nor a "
            "provisioner class"
        )
    try:
        return cast("Provisioner", found())
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"--provisioner {reference}: cannot create the provisioner: {type(error).__name__}: "
            f"{error}"
        ) from error


def load_all(references: Iterable[str], settings: Settings) -> list[CustomDriver]:
    """Load all plug-ins and return their driver objects.

    Raises:
        ConfigError: a plug-in cannot be loaded, or two plug-ins have the same name.
    """
    drivers: dict[str, CustomDriver] = {}
    for reference in references:
        driver = custom_driver(load(reference), settings)
        if driver.name in drivers:
            raise ConfigError(
                f"--provisioner {reference}: provisioner {driver.name} is already served. "
                "Name it only once"
            )
        drivers[driver.name] = driver
        _log.info("Serving provisioner", driver=driver.name, reference=reference)
    return list(drivers.values())


def _attribute(reference: str) -> Any:
    module_name, _, path = reference.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--provisioner {reference}: {error}") from error
    return found


def _entry_point(name: str) -> Any:
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = ", ".join(sorted(entry_points(group=GROUP).names)) or "none"
        raise ConfigError(
            f"--provisioner {name}: there is no such plug-in. Use MODULE:CLASS or an entry point "
            f"in the group {GROUP} (installed: {known}). If this is the driver name for a very old "
            "release of csi-provisioner, remove the flag"
        )
    try:
        return next(iter(found)).load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--provisioner {name}: {error}") from error
