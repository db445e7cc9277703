"""Defines snapshot-controller's flags and reads the controller's settings from them (SNC-100)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from workers.config.flagfields import setting, with_flags
from workers.config.flags import POSITIVE, RESYNC_COMMANDS, Command, Flag
from workers.config.flags import Kind as Value

if TYPE_CHECKING:
    from collections.abc import Mapping

GATE_GROUPS: Final = "CSIVolumeGroupSnapshot"


_RUN_WORKER: Final = frozenset({Command.RUN, Command.WORKER})
_BOOL, _UINT, _DURATION = Value.BOOL, Value.UINT, Value.DURATION

FLAGS: Final = (
    Flag("worker-threads", _UINT, "10", "How many objects of each kind may be reconciled at the "
         "same time, across all worker processes."),
    Flag("retry-interval-start", _DURATION, "1s", "First retry interval of a failed object. It "
         "doubles with each failure.", bound=POSITIVE),
    Flag("retry-interval-max", _DURATION, "5m", "Longest retry interval.", bound=POSITIVE),
    Flag("resync-period", _DURATION, "15m", "How often every unfinished object is rechecked.",
         RESYNC_COMMANDS, bound=POSITIVE),
    Flag("retry-crd-interval-max", _DURATION, "30s", "How long snapshot-controller waits for its "
         "CRDs.", ignored="csi-fleet checks for missing CRDs indefinitely"),
    Flag("enable-distributed-snapshotting", _BOOL, "false", "Label the VolumeSnapshotContents "
         "of local volumes with the name of their node, for sidecars that run on every node.",
         _RUN_WORKER),
    Flag("prevent-volume-mode-conversion", _BOOL, "true", "Record the mode of the source volume in "
         "snapshot contents, so that a restore to a different mode needs explicit permission.",
         _RUN_WORKER),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SnapshotControllerSettings:
    """The values of snapshot-controller's flags.

    Attributes:
        worker_threads: the number of concurrent reconciles per kind.
        retry_interval_start_seconds, retry_interval_max_seconds: the back-off after an object's
            reconcile has failed.
        is_distributed: whether local volumes' snapshot contents are labelled with their node
            (SNC-080).
        keeps_volume_mode: whether snapshot contents record the mode of their volume (SNC-081).
        groups: whether group snapshots are served.
    """

    worker_threads: int = setting("worker-threads", FLAGS)
    retry_interval_start_seconds: float = setting("retry-interval-start", FLAGS)
    retry_interval_max_seconds: float = setting("retry-interval-max", FLAGS)
    is_distributed: bool = setting("enable-distributed-snapshotting", FLAGS)
    keeps_volume_mode: bool = setting("prevent-volume-mode-conversion", FLAGS)
    groups: bool = True


def read_settings(values: Mapping[str, Any]) -> SnapshotControllerSettings:
    """Reads the settings from the flag values, keyed by flag name; missing ones have a default."""
    gates: Mapping[str, bool] = values.get("feature-gates") or {}
    groups = bool(gates.get(GATE_GROUPS, True))
    found = with_flags(SnapshotControllerSettings(groups=groups), values)
    return replace(found, worker_threads=max(1, found.worker_threads))
