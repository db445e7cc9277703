"""Settings of the data source validator, from volume-data-source-validator's flags (DV-030)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from workers.config.flagfields import setting, with_flags
from workers.config.flags import POSITIVE, Flag
from workers.config.flags import Kind as Value

if TYPE_CHECKING:
    from collections.abc import Mapping

FLAGS: Final = (
    Flag("worker-threads", Value.UINT, "10", "How many claims may be validated at the same time, "
         "across all worker processes."),
    Flag("retry-interval-start", Value.DURATION, "1s", "First retry interval of a claim that could "
         "not be validated. It doubles with each failure.", bound=POSITIVE, upstream=False),
    Flag("retry-interval-max", Value.DURATION, "5m", "Longest retry interval.", bound=POSITIVE,
         upstream=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ValidatorSettings:
    """The values of the flags.

    Attributes:
        worker_threads: the number of claims validated at the same time.
        retry_interval_start_seconds, retry_interval_max_seconds: the back-off after a failed read.
    """

    worker_threads: int = setting("worker-threads", FLAGS)
    retry_interval_start_seconds: float = setting("retry-interval-start", FLAGS)
    retry_interval_max_seconds: float = setting("retry-interval-max", FLAGS)


def read_settings(values: Mapping[str, Any]) -> ValidatorSettings:
    """Build the settings from the flag values, keyed by flag name; missing ones have a default."""
    found = with_flags(ValidatorSettings(), values)
    return replace(found, worker_threads=max(1, found.worker_threads))
