"""One driver as this worker sees it: its capabilities, and what follows from them.

Upstream reads the name and the capabilities once, and exits when the socket is lost. Here the
handshake is repeated after every reconnect, because the driver may have been updated in the
meantime (F-017, P-003).
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from csi_client.errors import CsiError
from workers.controllers.catalogue import specs
from workers.drivers.pace import Pace
from workers.errors import ConfigError
from workers.migration.plugins import in_tree_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from csi_client.client import CsiClient
    from workers.config.settings import Settings

DEADLINE_EXCEEDED = 4


@dataclass(frozen=True)
class Driver:
    """A driver after its handshake.

    Attributes:
        name: the name from GetPluginInfo, which is used as the provisioner name everywhere.
        queue_name: the name of the driver's queues: `name`, or `name@<node>` in node deployment. It
            is also part of the driver's keys.
        in_tree_name: the in-tree plugin that the driver replaces; None if there is none (P-009).
        identity: the value of the identity volume attribute (P-010).
        node_segments: the accessible topology of the local node; None outside node deployment.
        pace: the rate limiter for the driver's calls.
        timeouts: the timeouts in seconds by operation (`create`, `expand`), from the drivers file.
        class_timeouts: the timeouts in seconds, by storage class and operation.
        limits: the number of concurrent calls by operation, from the drivers file.
        limits_per_node: the number of concurrent calls for one node, by operation.
        told: the driver's responses to the additional calls in `Spec.asks`, by call.
    """

    name: str
    queue_name: str
    client: CsiClient
    plugin_capabilities: frozenset[str]
    controller_capabilities: frozenset[str]
    in_tree_name: str | None
    identity: str
    settings: Settings
    node_id: str = ""
    node_segments: dict[str, str] | None = None
    pace: Pace = field(default_factory=Pace)
    timeouts: Mapping[str, float] = field(default_factory=dict)
    class_timeouts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    limits_per_node: Mapping[str, int] = field(default_factory=dict)
    told: Mapping[str, frozenset[str]] = field(default_factory=dict)
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = (self.name,) if self.in_tree_name is None else (self.name, self.in_tree_name)
        object.__setattr__(self, "names", names)

    @property
    def event_source(self) -> str:
        """The source component of events about claims and volumes (P-802, L-006)."""
        return self.name

    def timeout_seconds(self, operation: str, class_name: str) -> float | None:
        """Return the timeout of a call for a volume of that class.

        None means the controller's default.
        """
        by_class = self.class_timeouts.get(class_name, {}).get(operation)
        return self.timeouts.get(operation) if by_class is None else by_class

    def per_node(self, operation: str) -> int:
        """Return how many calls for one node may run at once; 0 means any number."""
        return self.limits_per_node.get(operation, 0)

    def supports(self, capability: str) -> bool:
        """Return True if the controller service or the plug-in has the capability (P-008)."""
        return capability in self.controller_capabilities or capability in self.plugin_capabilities

    @property
    def node_capabilities(self) -> frozenset[str]:
        """The capabilities of the driver's node service, if it is on the same socket (R-003)."""
        return self.told.get("node_capabilities", frozenset())

    @property
    def expansion_modes(self) -> frozenset[str]:
        """The ways in which the driver's volumes can grow: ONLINE, OFFLINE, both or neither."""
        return self.told.get("expansion_modes", frozenset())

    @property
    def supports_topology(self) -> bool:
        """Whether the feature gate is on and the driver has the topology capability (P-300)."""
        return (
            self.settings.gates.topology
            and "VOLUME_ACCESSIBILITY_CONSTRAINTS" in self.plugin_capabilities
        )

    @property
    def publishes_capacity(self) -> bool:
        """Whether csi-fleet maintains CSIStorageCapacity objects for the driver (CAP-012)."""
        return self.settings.capacity.enabled and "GET_CAPACITY" in self.controller_capabilities

    def record(self) -> dict[str, Any]:
        """Return the driver's public record for the watcher and tools; controllers extend it."""
        return {
            "name": self.name,
            "queue_name": self.queue_name,
            "in_tree_name": self.in_tree_name,
            "plugin_capabilities": sorted(self.plugin_capabilities),
            "controller_capabilities": sorted(self.controller_capabilities),
            "node": self.settings.node.node_name if self.settings.node.enabled else None,
            "node_segments": self.node_segments,
            "attributes_classes": self.settings.gates.volume_attributes_class,
            "system_namespace": self.settings.kube.namespace,
        }


def wait_ready(client: CsiClient, log: Callable[[str], None], *, tick_seconds: float = 1.0) -> None:
    """Probe the driver until it is ready (P-004).

    Raises:
        ConfigError: a Probe call failed with a gRPC error other than DEADLINE_EXCEEDED; exit
            code 1.
    """
    while True:
        started = time.monotonic()
        try:
            if client.probe():
                return
            log("CSI driver is not ready")
        except CsiError as error:
            if error.code != DEADLINE_EXCEEDED:
                raise ConfigError(f"CSI driver probe failed: {error}", exit_code=1) from error
            log("CSI driver probe timed out")
        time.sleep(max(0.0, tick_seconds - (time.monotonic() - started)))


def handshake(client: CsiClient, settings: Settings) -> Driver:
    """Ask a ready driver for its name and capabilities (P-005 to P-010, P-050).

    Raises:
        ConfigError: one of the calls failed. The exit code is upstream's: 255 for csi-provisioner,
            1 for the other sidecars (F-013, F-014, A-003, R-003, SNS-110).
    """
    fatal = max((spec.fatal_code for spec in specs(settings.chosen)), default=1)
    try:
        name, _ = client.plugin_info()
    except CsiError as error:
        raise ConfigError(f"Error getting CSI driver name: {error}", exit_code=fatal) from error
    try:
        plugin_capabilities = client.plugin_capabilities()
        controller_capabilities = client.controller_capabilities()
    except CsiError as error:
        raise ConfigError(
            f"Error getting CSI driver capabilities: {error}", exit_code=fatal
        ) from error
    identity = f"{time.time_ns() // 1_000_000}-{random.randrange(10_000)}-{name}"  # noqa: S311
    queue_name, node_id, segments = name, "", None
    if settings.node.enabled:
        queue_name = f"{name}@{settings.node.node_name}"
    if settings.node.enabled and "provisioner" in settings.chosen:
        try:
            node = client.node_info()
        except CsiError as error:
            raise ConfigError(
                f"Failed to get node info from CSI driver: {error}", exit_code=fatal
            ) from error
        node_id = node.node_id
        segments = dict(node.accessible_topology.segments)
        identity = f"{identity}-{settings.node.node_name}"
    return Driver(
        name=name,
        queue_name=queue_name,
        client=client,
        plugin_capabilities=plugin_capabilities,
        controller_capabilities=controller_capabilities,
        in_tree_name=in_tree_name(name),
        identity=identity,
        settings=settings,
        node_id=node_id,
        node_segments=segments,
        told=_told(client, settings),
    )


def _told(client: CsiClient, settings: Settings) -> dict[str, frozenset[str]]:
    """Make the additional calls that the chosen controllers need (`Spec.asks`).

    Raises:
        ConfigError: the driver did not answer; exit code 1.
    """
    found: dict[str, frozenset[str]] = {}
    for name in sorted({name for spec in specs(settings.chosen) for name in spec.asks}):
        try:
            found[name] = getattr(client, name)()
        except CsiError as error:
            if not error.is_final:
                raise ConfigError(
                    f"Error getting CSI driver {name}: {error}", exit_code=1
                ) from error
            found[name] = frozenset()
    return found
