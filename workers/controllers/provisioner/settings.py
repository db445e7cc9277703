"""The provisioner's own settings, from its flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.config.settings import ProvisionSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_settings(values: Mapping[str, Any]) -> ProvisionSettings:
    """Build them from the value of every flag by name."""
    return ProvisionSettings(
        volume_name_prefix=values["volume-name-prefix"],
        volume_name_uuid_length=values["volume-name-uuid-length"],
        default_fstype=values["default-fstype"],
        extra_create_metadata=values["extra-create-metadata"],
        controller_publish_readonly=values["controller-publish-readonly"],
        prevent_volume_mode_conversion=values["prevent-volume-mode-conversion"],
        strict_topology=values["strict-topology"],
        immediate_topology=values["immediate-topology"],
        retry_interval_start_seconds=values["retry-interval-start"],
        retry_interval_max_seconds=values["retry-interval-max"],
        worker_threads=values["worker-threads"],
        cloning_protection_threads=values["cloning-protection-threads"],
        snapshot_orphan_sweep_seconds=values["snapshot-orphan-sweep-interval"],
    )
