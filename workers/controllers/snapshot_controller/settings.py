"""The settings of the snapshot controller: snapshot-controller's flags, read once (SNC-100)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

GATE_GROUPS: Final = "CSIVolumeGroupSnapshot"


@dataclass(frozen=True, slots=True)
class SnapshotControllerSettings:
    """What snapshot-controller's flags say.

    Attributes:
        worker_threads: passes at the same time, per kind.
        retry_start_seconds, retry_max_seconds: back-off of an object that fails.
        is_distributed: contents of local volumes are labelled with their node (SNC-080).
        keeps_volume_mode: contents tell the mode of their volume (SNC-081).
        groups: whether group snapshots are served.
    """

    worker_threads: int = 10
    retry_start_seconds: float = 1.0
    retry_max_seconds: float = 300.0
    is_distributed: bool = False
    keeps_volume_mode: bool = True
    groups: bool = True

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """From flag values by name; an absent one takes its default."""
        gates: Mapping[str, bool] = values.get("feature-gates") or {}
        usual = cls()
        return cls(
            worker_threads=max(1, int(values.get("worker-threads", usual.worker_threads))),
            retry_start_seconds=float(
                values.get("retry-interval-start", usual.retry_start_seconds)
            ),
            retry_max_seconds=float(values.get("retry-interval-max", usual.retry_max_seconds)),
            is_distributed=bool(values.get("enable-distributed-snapshotting", False)),
            keeps_volume_mode=bool(values.get("prevent-volume-mode-conversion", True)),
            groups=bool(gates.get(GATE_GROUPS, True)),
        )
