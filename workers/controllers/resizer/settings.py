"""The resizer's settings, from csi-resizer's flags and a few additional flags (R-120, R-121)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workers.config.flagfields import read, setting
from workers.config.flags import POSITIVE, Command, Flag
from workers.config.flags import Kind as Value
from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

GATE_RECOVERY: Final = "RecoverVolumeExpansionFailure"
GATE_ATTRIBUTES: Final = "VolumeAttributesClass"
GATE_ANNOTATE: Final = "AnnotateFsResize"


_RUN_WORKER: Final = frozenset({Command.RUN, Command.WORKER})
_DRIVER_TOOLS: Final = frozenset({Command.AUDIT, Command.DOCTOR, Command.CONFORMANCE})
_BOOL, _INT, _STRING, _DURATION = Value.BOOL, Value.INT, Value.STRING, Value.DURATION

FLAGS: Final = (
    Flag("timeout", _DURATION, "10s", "Deadline for each CSI call (expansion, modification, and "
         "the identity calls at start).",
         _RUN_WORKER | _DRIVER_TOOLS, bound=POSITIVE),
    Flag("workers", _INT, "10", "How many expansions and modifications may run at the same time "
         "per driver, across all worker processes; at least 1."),
    Flag("retry-interval-start", _DURATION, "1s", "First retry interval of a failed expansion or "
         "modification. It doubles with each failure.", bound=POSITIVE),
    Flag("retry-interval-max", _DURATION, "5m", "Longest retry interval. It is also the delay "
         "before a retry of a size or class that the driver reported as infeasible.",
         bound=POSITIVE),
    Flag("handle-volume-inuse-error", _BOOL, "true", "If the driver refused to expand a volume "
         "because it is in use, retry only when no pod uses the claim.", _RUN_WORKER),
    Flag("extra-modify-metadata", _BOOL, "false", "Add the names of the claim and of the PV to the "
         "parameters of ControllerModifyVolume.", _RUN_WORKER),
    Flag("default-fstype", _STRING, "", "File system type for volumes that do not specify one. Use "
         "the same value as for csi-attacher. If empty, the driver chooses.",
         _RUN_WORKER, upstream=False),
    Flag("serialize-expand-modify", _BOOL, "false", "Do not expand and modify the same volume at "
         "the same time.", _RUN_WORKER, upstream=False),
    Flag("exhausted-is-final", _BOOL, "false", "Allow a smaller size to be requested after the "
         "driver has returned RESOURCE_EXHAUSTED three times and no call has run for the length of "
         "two deadlines.", _RUN_WORKER, upstream=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizerSettings:
    """The resizer's settings for one driver.

    Attributes:
        timeout_seconds: the timeout of each expansion and modification, `--timeout` (DR-032).
        workers: how many claims may be in progress at the same time, `--workers`.
        retry_interval_start_seconds: the first retry interval.
        retry_interval_max_seconds: the longest retry interval, and the pause after an infeasible
            size or class.
        handles_in_use: whether to check for pods before calling an offline-only driver again
            (R-080).
        extra_modify_metadata: whether to add the names of claim and volume to the parameters
            (R-104).
        default_fs_type: the file system for volumes that specify none; it is the driver's attach
            setting (DR-004).
        serializes: whether a volume is never expanded and modified at the same time (MR-011).
        exhausted_is_final: whether a size may be reduced after RESOURCE_EXHAUSTED (MR-031).
        recovers, applies_classes, annotates: the three gates (R-121).
    """

    timeout_seconds: float = setting("timeout", FLAGS)
    workers: int = setting("workers", FLAGS)
    retry_interval_start_seconds: float = setting("retry-interval-start", FLAGS)
    retry_interval_max_seconds: float = setting("retry-interval-max", FLAGS)
    handles_in_use: bool = setting("handle-volume-inuse-error", FLAGS)
    extra_modify_metadata: bool = setting("extra-modify-metadata", FLAGS)
    default_fs_type: str = setting("default-fstype", FLAGS)
    serializes: bool = setting("serialize-expand-modify", FLAGS)
    exhausted_is_final: bool = setting("exhausted-is-final", FLAGS)
    recovers: bool = True
    applies_classes: bool = True
    annotates: bool = True


def read_settings(values: Mapping[str, Any]) -> ResizerSettings:
    """Build the settings from the flag values, keyed by flag name.

    Raises:
        ConfigError: `--workers` is less than 1 (DR-030).
    """
    gates: Mapping[str, bool] = values.get("feature-gates") or {}
    if values["workers"] < 1:
        raise ConfigError(f"--workers must be at least 1, got {values['workers']}", exit_code=1)
    return read(
        ResizerSettings,
        values,
        recovers=gates.get(GATE_RECOVERY, True),
        applies_classes=gates.get(GATE_ATTRIBUTES, True),
        annotates=gates.get(GATE_ANNOTATE, True),
    )
