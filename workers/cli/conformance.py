"""`csi-fleet conformance --endpoint unix:///csi/csi.sock`: checks a live CSI driver.

It needs neither a cluster nor Redis. The exit code is 0 if the driver passes, 1 if it does not, and
2 if the command line is invalid.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import msgspec

from csi_client.client import CsiClient
from csi_client.connection import CsiAddressError
from csi_client.errors import CsiError
from workers.cli import terminal
from workers.conformance.driver import check_driver
from workers.errors import AttemptError, ConfigError
from workers.translate import quantity

if TYPE_CHECKING:
    from workers.config.settings import Settings

CONNECT_SECONDS: Final = 10.0


def run(settings: Settings) -> int:
    """Run the command: print the report and return the exit code."""
    tool = settings.tool
    if not tool.endpoint.startswith(("unix://", "tcp://", "/")):
        wrong = f"--endpoint {tool.endpoint}" if tool.endpoint else "--endpoint is needed"
        raise ConfigError(
            f"{wrong}. Use an address such as unix:///csi/csi.sock or tcp://host:port"
        )
    parameters = dict(_pair(text) for text in tool.parameters)
    try:
        size = quantity.parse(tool.size)
    except AttemptError as error:
        raise ConfigError(f"--size: {error.message}") from error
    try:
        client = CsiClient(
            tool.endpoint.removeprefix("tcp://"),
            timeout_seconds=settings.driver.timeout_seconds,
            allow_tcp=tool.endpoint.startswith("tcp://"),
        )
    except CsiAddressError as error:
        raise ConfigError(f"--endpoint: {error}") from error
    try:
        patience = min(CONNECT_SECONDS, settings.driver.timeout_seconds)
        if not client.wait_connected(patience):
            raise ConfigError(f"--endpoint: no driver answers at {tool.endpoint}", exit_code=1)
        report = check_driver(client, parameters=parameters, size_bytes=size)
    except CsiError as error:
        raise ConfigError(
            f"--endpoint: the driver does not report its name and capabilities: {error}"
        ) from error
    finally:
        client.close()
    if tool.output in {"json", "yaml"}:
        fields = msgspec.to_builtins(asdict(report))
        terminal.write_document(tool.output, "Conformance", fields)
    else:
        sys.stdout.write(report.text())
    return 1 if report.broken else 0


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ConfigError(f"--parameter {text!r} is not KEY=VALUE")
    return key, value
