"""A plug-in as one of the process's drivers, with its own queue, limits and registration."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from csi_client.client import CsiClient
from workers.custom.api import Options
from workers.custom.backend import CustomBackend
from workers.drivers.driver import Driver
from workers.errors import ConfigError

if TYPE_CHECKING:
    from workers.config.settings import Settings
    from workers.custom.api import Provisioner


class NoSocket(CsiClient):
    """Takes the place of a CSI driver's client: a plug-in has no connection that could be lost."""

    def __init__(self) -> None:  # does not call the base constructor, which would open a channel
        self.address = "in process"

    @property
    def is_connected(self) -> bool:
        """Always True, because a plug-in is always available."""
        return True

    @property
    def connection_losses(self) -> int:
        """The number of lost connections, always 0."""
        return 0

    def recheck(self) -> None:
        """Do nothing, because a plug-in's call cannot be cancelled."""

    def close(self) -> None:
        """Do nothing, because there is no connection."""


@dataclass(frozen=True)
class CustomDriver(Driver):
    """The driver object of a plug-in."""

    options: Options = field(default_factory=Options)
    backend: CustomBackend | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", (self.name, *self.options.additional_names))

    def record(self) -> dict[str, Any]:
        """Return the driver's record, with additional fields about the plug-in for the watcher."""
        return super().record() | {
            "additional_names": list(self.options.additional_names),
            "add_finalizer": self.options.add_finalizer,
            "custom": True,
        }


def custom_driver(provisioner: Provisioner, settings: Settings) -> CustomDriver:
    """Create the driver object for a plug-in.

    Raises:
        ConfigError: the plug-in has no name or lacks a method, its options are invalid, or
            csi-fleet is running in node deployment.
    """
    name = getattr(provisioner, "name", "")
    kind = type(provisioner).__name__
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"--provisioner: {kind} has no name. Set its attribute, for example `name = "
            '"example.com/x"`'
        )
    for method in ("provision", "delete"):
        if not callable(getattr(provisioner, method, None)):
            raise ConfigError(f"--provisioner: {kind} has no method {method}")
    options = getattr(provisioner, "options", Options())
    if not isinstance(options, Options):
        raise ConfigError(
            f"--provisioner: the options of {kind} are not an instance of workers.custom.Options"
        )
    if options.save_attempts < 1 or options.save_interval_seconds < 0:
        raise ConfigError(
            f"--provisioner: {kind}: save_attempts must be at least 1, and times must not be "
            "negative"
        )
    if settings.node.enabled:
        raise ConfigError(
            "--provisioner cannot be combined with --node-deployment. Remove one of the two flags"
        )
    return CustomDriver(
        name=name,
        queue_name=name,
        client=NoSocket(),
        plugin_capabilities=frozenset(),
        controller_capabilities=frozenset(),
        in_tree_name=None,
        identity=name,
        # Capacity is published only for CSI drivers.
        settings=replace(settings, capacity=replace(settings.capacity, enabled=False)),
        backend=CustomBackend(provisioner, options),
        options=options,
    )
