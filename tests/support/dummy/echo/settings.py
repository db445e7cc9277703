"""The echo controller's flags, and the settings that they fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workers.config.flagfields import read, setting
from workers.config.flags import Flag, at_least
from workers.config.flags import Kind as Value

if TYPE_CHECKING:
    from collections.abc import Mapping

FLAGS: Final = (Flag("loudness", Value.UINT, "7", "How loud.", bound=at_least(1)),)


@dataclass(frozen=True, slots=True)
class EchoSettings:
    """The settings of the echo controller."""

    loudness: int = setting("loudness", FLAGS)


def read_settings(values: Mapping[str, Any]) -> EchoSettings:
    """Build the settings from the value of every flag by name."""
    return read(EchoSettings, values)
