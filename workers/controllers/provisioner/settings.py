"""Reads the provisioner's own settings from its flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.config.flagfields import read
from workers.config.settings import ProvisionSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_settings(values: Mapping[str, Any]) -> ProvisionSettings:
    """Builds the settings from the flag values, keyed by flag name."""
    return read(ProvisionSettings, values)
