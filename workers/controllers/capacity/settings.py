"""The settings of capacity publishing, from its flags and the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.config.settings import CapacitySettings
from workers.spec import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_settings(values: Mapping[str, Any]) -> CapacitySettings:
    """Build them from the value of every flag by name."""
    environ: Mapping[str, str] = values[ENVIRONMENT]
    return CapacitySettings(
        enabled=values["enable-capacity"],
        for_immediate_binding=values["capacity-for-immediate-binding"],
        poll_interval_seconds=values["capacity-poll-interval"],
        ownerref_level=values["capacity-ownerref-level"],
        threads=values["capacity-threads"],
        always_topology=values["capacity-always-topology"],
        namespace=environ.get("NAMESPACE", ""),
        pod_name=environ.get("POD_NAME", ""),
    )
