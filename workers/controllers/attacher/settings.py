"""The attacher's own settings, from its flags (A-100, A-101)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workers.config.gates import GateSpec
from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

ALLOCATABLE_COUNT: Final = "MutableCSINodeAllocatableCount"

GATES: Final = (
    GateSpec(
        ALLOCATABLE_COUNT,
        "BETA",
        default=True,
        effect="write the gRPC code of a failed attach, so that a full node is counted again",
    ),
)


@dataclass(frozen=True, slots=True)
class AttacherSettings:
    """What one driver's attachments follow; the defaults are csi-attacher's."""

    timeout_seconds: float = 15.0
    """Deadline of a publish, an unpublish, and of each page of ListVolumes (DA-010)."""

    worker_threads: int = 10
    """Attaches at once; detaches as many apart from them (DA-023)."""

    retry_interval_start_seconds: float = 1.0
    retry_interval_max_seconds: float = 300.0

    reconcile_seconds: float = 60.0
    """Time between two comparisons with ListVolumes."""

    reconcile_timeout_seconds: float = 600.0
    """Longest time that one listing may take, all pages together (DA-010)."""

    max_entries: int = 0
    """Page size of ListVolumes, 0 leaves it to the driver."""

    default_fstype: str = ""
    """File system type of volumes that name none."""

    writes_error_code: bool = True
    """Gate MutableCSINodeAllocatableCount: attachError carries the gRPC code (A-057)."""

    detaches_without_missing_secret: bool = False
    """Unpublish without secrets when the secret is gone for good (DA-007)."""

    is_strict_single_node: bool = True
    """A volume of one node is not published while another node's detach is due (MA-012)."""

    max_ops_per_node: int = 0
    """Publish and unpublish calls at once for one node, 0 for no limit (MA-010)."""

    record_annotation: str = ""
    """Annotation of an attachment for the detach record, "" for none (MA-030)."""


def read_settings(values: Mapping[str, Any]) -> AttacherSettings:
    """Build them from the value of every flag by name.

    Raises:
        ConfigError: exit 1, no worker threads (A-003).
    """
    if values["worker-threads"] < 1:
        raise ConfigError("Option -worker-threads must be greater than zero", exit_code=1)
    return AttacherSettings(
        timeout_seconds=values["timeout"],
        worker_threads=values["worker-threads"],
        retry_interval_start_seconds=values["retry-interval-start"],
        retry_interval_max_seconds=values["retry-interval-max"],
        reconcile_seconds=values["reconcile-sync"],
        reconcile_timeout_seconds=values["reconcile-timeout"],
        max_entries=values["max-entries"],
        default_fstype=values["default-fstype"],
        writes_error_code=values["feature-gates"].get(ALLOCATABLE_COUNT, True),
        detaches_without_missing_secret=values["detach-without-missing-secret"],
        is_strict_single_node=values["strict-single-node"],
        max_ops_per_node=values["max-ops-per-node"],
        record_annotation=values["attach-record-annotation"],
    )
