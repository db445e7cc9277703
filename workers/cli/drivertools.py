"""Which driver does a command talk to, and how? That of --csi-address, or one of the drivers file.

The file is the workers' own: name, endpoint, mutual TLS and time-outs are checked as they check
them, and a certificate is told to be wrong in their words.
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
    """The drivers that the command line names, those of the file first.

    Raises:
        ConfigError: the drivers file is unusable.
    """
    found: list[DriverSpec] = []
    if settings.drivers_file:
        found += parse_all(read_texts(Path(settings.drivers_file)), pool=None).values()
    return [*found, *(DriverSpec("", address) for address in settings.csi_addresses)]


def the_one(settings: DriverSettings, name: str) -> DriverSpec:
    """The driver that a command is about.

    Args:
        settings: the command line's.
        name: of `--driver`, "" if none was given.

    Raises:
        ConfigError: there is none, or more than one.
    """
    found = given(settings)
    if name and settings.drivers_file:
        found = [one for one in found if one.name == name]
        if not found:
            raise ConfigError(
                f"--driver {name}: {settings.drivers_file} has no driver of that name"
            )
    if len(found) != 1:
        raise ConfigError(
            "this is about one driver: give one --csi-address, or --drivers-file and --driver"
        )
    return found[0]


def open_client(spec: DriverSpec, timeout_seconds: float) -> CsiClient:
    """A client that begins to connect; `timeout_seconds` unless the file has the driver's own.

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
