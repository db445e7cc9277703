"""The resizer's own settings, made from csi-resizer's flags and a few of ours (R-120, R-121)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

GATE_RECOVERY: Final = "RecoverVolumeExpansionFailure"
GATE_ATTRIBUTES: Final = "VolumeAttributesClass"
GATE_ANNOTATE: Final = "AnnotateFsResize"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizerSettings:
    """What one driver's resizer does.

    Attributes:
        timeout_seconds: deadline of each expansion and modification, `--timeout` (DR-032).
        workers: claims at work at the same time, `--workers`.
        retry_interval_start_seconds: first retry interval.
        retry_interval_max_seconds: longest one, and the pause after an infeasible size or class.
        handles_in_use: look for pods before an offline-only driver is asked again (R-080).
        extra_modify_metadata: R-104.
        default_fs_type: for volumes that name none; the attach setting of the driver (DR-004).
        serializes: never expand and modify one volume at the same time (MR-011).
        exhausted_is_final: MR-031.
        recovers, applies_classes, annotates: the three gates (R-121).
    """

    timeout_seconds: float = 10.0
    workers: int = 10
    retry_interval_start_seconds: float = 1.0
    retry_interval_max_seconds: float = 300.0
    handles_in_use: bool = True
    extra_modify_metadata: bool = False
    default_fs_type: str = ""
    serializes: bool = False
    exhausted_is_final: bool = False
    recovers: bool = True
    applies_classes: bool = True
    annotates: bool = True


def read_settings(values: Mapping[str, Any]) -> ResizerSettings:
    """Make the settings of flag values by name.

    Raises:
        ConfigError: `--workers` is not at least 1 (DR-030).
    """
    gates: Mapping[str, bool] = values.get("feature-gates") or {}
    if values["workers"] < 1:
        raise ConfigError(f"--workers must be at least 1, got {values['workers']}", exit_code=1)
    return ResizerSettings(
        timeout_seconds=values["timeout"],
        workers=values["workers"],
        retry_interval_start_seconds=values["retry-interval-start"],
        retry_interval_max_seconds=values["retry-interval-max"],
        handles_in_use=values["handle-volume-inuse-error"],
        extra_modify_metadata=values["extra-modify-metadata"],
        default_fs_type=values["default-fstype"],
        serializes=values["serialize-expand-modify"],
        exhausted_is_final=values["exhausted-is-final"],
        recovers=gates.get(GATE_RECOVERY, True),
        applies_classes=gates.get(GATE_ATTRIBUTES, True),
        annotates=gates.get(GATE_ANNOTATE, True),
    )
