"""Selects and connects the driver of a command: by --csi-address or from the drivers file.

The file is the one that the workers use. A driver's name, endpoint, mutual TLS and timeouts are
checked as the workers check them, and a bad certificate is reported in the same words.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from csi_client.client import CsiClient
from csi_client.connection import CsiAddressError
from workers.drivers.driversfile import DriverSpec, parse_all, read_texts
from workers.errors import ConfigError

if TYPE_CHECKING:
    from workers.config.settings import DriverSettings

CONNECT_SECONDS: Final = 5.0


def given(settings: DriverSettings) -> list[DriverSpec]:
    """Return the drivers of the drivers file, followed by those given with --csi-address.

    Raises:
        ConfigError: the drivers file is unusable.
    """
    found: list[DriverSpec] = []
    if settings.drivers_file:
        found += parse_all(read_texts(Path(settings.drivers_file)), pool=None).values()
    return [*found, *(DriverSpec("", address) for address in settings.csi_addresses)]


def the_one(settings: DriverSettings, name: str) -> DriverSpec:
    """Return the single driver that a command works on.

    Args:
        settings: the settings from the command line.
        name: the value of `--driver`; "" if it was not given.

    Raises:
        ConfigError: there is no such driver, or more than one.
    """
    found = given(settings)
    if name and settings.drivers_file:
        found = [one for one in found if one.name == name]
        if not found:
            raise ConfigError(
                f"--driver {name}: {settings.drivers_file} has no driver with this name"
            )
    if len(found) != 1:
        raise ConfigError(
            "this command works on a single driver. Set --csi-address once, or set --drivers-file "
            "and --driver"
        )
    return found[0]


def open_client(spec: DriverSpec, timeout_seconds: float) -> CsiClient:
    """Return a client that has begun to connect; a timeout in the file overrides the argument.

    Raises:
        ConfigError: the endpoint or a TLS file is unusable.
    """
    try:
        return CsiClient(
            spec.endpoint,
            timeout_seconds=spec.flags.get("timeout", timeout_seconds),
            allow_tcp=True,
            tls=spec.tls,
            timeouts_by_rpc=spec.timeouts_by_rpc(),
        )
    except CsiAddressError as error:
        raise ConfigError(f"driver at {spec.endpoint}: {error}") from error
