"""Settings, from csi-external-health-monitor-controller's flags (VH-040)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workers.config.flagfields import read, setting
from workers.config.flags import POSITIVE, Command, Flag
from workers.config.flags import Kind as Value
from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_RUN_WORKER: Final = frozenset({Command.RUN, Command.WORKER})
_SCHEDULE: Final = _RUN_WORKER | {Command.BEAT}
_POLLED: Final = "each poll reads the volumes itself"
_REMOVED: Final = "the node watcher was removed upstream; the kubelet reports a node's view"

FLAGS: Final = (
    Flag("timeout", Value.DURATION, "15s", "Deadline of each call to the driver: one volume, or "
         "one page of a list.", _RUN_WORKER, bound=POSITIVE),
    Flag("list-volumes-interval", Value.DURATION, "5m", "Time between two polls of a driver that "
         "lists the health of its volumes.", _SCHEDULE, bound=POSITIVE),
    Flag("monitor-interval", Value.DURATION, "1m", "Time between two polls of a driver that is "
         "asked about each volume separately.", _SCHEDULE, bound=POSITIVE),
    Flag("worker-threads", Value.UINT, "10", "How many volumes of a driver are asked about at the "
         "same time.", _RUN_WORKER),
    Flag("resync", Value.DURATION, "10m", "Resync interval of the Go program.", _RUN_WORKER,
         ignored=_POLLED),
    Flag("volume-list-add-interval", Value.DURATION, "5m", "Time between two lists of the volumes.",
         _RUN_WORKER, ignored=_POLLED, bound=POSITIVE),
    Flag("node-list-add-interval", Value.DURATION, "5m", "Time between two lists of the nodes.",
         _RUN_WORKER, ignored=_REMOVED, bound=POSITIVE),
    Flag("enable-node-watcher", Value.BOOL, "false", "Watch for failed nodes.", _RUN_WORKER,
         ignored=_REMOVED),
    Flag("volume-condition", Value.BOOL, "false", "Also poll drivers for CSI 1.12 and older: write "
         "their VolumeCondition to the claim's healthStatus, and emit the events "
         "VolumeConditionAbnormal and VolumeConditionNormal.", _SCHEDULE, upstream=False),
    Flag("dropped-status-interval", Value.DURATION, "30m", "How often the status of a claim is "
         "written while the API server drops healthStatus, because its feature gate "
         "CSIVolumeHealth is off.", _RUN_WORKER, bound=POSITIVE, upstream=False),
    Flag("retry-interval-start", Value.DURATION, "1s", "First retry interval of a poll that could "
         "not read the cluster. It doubles with each failure.", _RUN_WORKER, bound=POSITIVE,
         upstream=False),
    Flag("retry-interval-max", Value.DURATION, "5m", "Longest retry interval.", _RUN_WORKER,
         bound=POSITIVE, upstream=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """The values of the flags.

    Attributes:
        timeout_seconds: the deadline of one call.
        list_seconds: the time between two polls by list.
        get_seconds: the time between two polls volume by volume.
        worker_threads: how many volumes are asked about at the same time.
        reads_conditions: True to poll drivers that report VolumeCondition.
        dropped_seconds: the time between two writes that the API server is likely to drop.
        retry_interval_start_seconds, retry_interval_max_seconds: the back-off of a failed poll.
    """

    timeout_seconds: float = setting("timeout", FLAGS)
    list_seconds: float = setting("list-volumes-interval", FLAGS)
    get_seconds: float = setting("monitor-interval", FLAGS)
    worker_threads: int = setting("worker-threads", FLAGS)
    reads_conditions: bool = setting("volume-condition", FLAGS)
    dropped_seconds: float = setting("dropped-status-interval", FLAGS)
    retry_interval_start_seconds: float = setting("retry-interval-start", FLAGS)
    retry_interval_max_seconds: float = setting("retry-interval-max", FLAGS)


def read_settings(values: Mapping[str, Any]) -> HealthSettings:
    """Build the settings from flag values by name.

    Raises:
        ConfigError: the number of worker threads is zero; the exit code is 1 (VH-040).
    """
    if values["worker-threads"] < 1:
        raise ConfigError("Option --worker-threads must be greater than zero", exit_code=1)
    return read(HealthSettings, values)
