"""Reads the settings of capacity publishing from its flags and from the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.config.flagfields import read
from workers.config.settings import CapacitySettings
from workers.spec import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_settings(values: Mapping[str, Any]) -> CapacitySettings:
    """Build the settings from a mapping of flag names to values."""
    environ: Mapping[str, str] = values[ENVIRONMENT]
    return read(
        CapacitySettings,
        values,
        namespace=environ.get("NAMESPACE", ""),
        pod_name=environ.get("POD_NAME", ""),
    )
