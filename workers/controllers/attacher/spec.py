"""Declares csi-attacher as data: kinds, watches, permissions, flags and settings.

The flags and defaults are those of external-attacher v4.11 (A-100, A-101).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workers.config.flagfields import read, setting
from workers.config.flags import POSITIVE, Command, Flag
from workers.config.flags import Kind as Value
from workers.config.gates import GateSpec
from workers.controllers.attacher import names
from workers.controllers.attacher.rules import AttacherRules, is_another_kind
from workers.errors import ConfigError
from workers.kube import paths
from workers.kube.objects import Attachment, CsiNode, Volume
from workers.queue.catalogkinds import KIND_ATTACHMENTS
from workers.spec import Kind, Permission, Spec, Watch

if TYPE_CHECKING:
    from collections.abc import Mapping

ALLOCATABLE_COUNT: Final = "MutableCSINodeAllocatableCount"

GATES: Final = (
    GateSpec(
        ALLOCATABLE_COUNT,
        "BETA",
        default=True,
        effect="Write the gRPC code of a failed attach to the VolumeAttachment, so that "
        "Kubernetes updates the volume limit of a full node.",
    ),
)


_RUN_WORKER: Final = frozenset({Command.RUN, Command.WORKER})
_SCHEDULE: Final = _RUN_WORKER | {Command.BEAT}
_DRIVER_TOOLS: Final = frozenset({Command.AUDIT, Command.DOCTOR, Command.CONFORMANCE})
_BOOL, _INT, _UINT, _STRING = Value.BOOL, Value.INT, Value.UINT, Value.STRING
_DURATION: Final = Value.DURATION

FLAGS: Final = (
    Flag("timeout", _DURATION, "15s", "Deadline of each CSI call (publish, unpublish, a page of "
         "ListVolumes, and the identity calls at start).",
         _RUN_WORKER | _DRIVER_TOOLS, bound=POSITIVE),
    Flag("worker-threads", _UINT, "10", "How many attaches may run at the same time per driver, "
         "across all worker processes. The same number applies separately to detaches.",
         _RUN_WORKER),
    Flag("retry-interval-start", _DURATION, "1s", "First retry interval of a failed attachment. It "
         "doubles with each failure.", _RUN_WORKER, bound=POSITIVE),
    Flag("retry-interval-max", _DURATION, "5m", "Longest retry interval.", _RUN_WORKER,
         bound=POSITIVE),
    Flag("resync", _DURATION, "10m", "How often every unfinished attachment is rechecked. This is "
         "csi-attacher's name for --resync-period; if both are set, the shorter period applies. 0 "
         "disables this flag. If neither is set, the default of --resync-period applies.",
         _RUN_WORKER | {Command.WATCHER}),
    Flag("reconcile-sync", _DURATION, "1m", "Time between two comparisons of the attachments with "
         "the driver's ListVolumes.", _SCHEDULE),
    Flag("max-entries", _INT, "0", "Number of entries per page of ListVolumes; 0 leaves the number "
         "to the driver.",
         _RUN_WORKER),
    Flag("default-fstype", _STRING, "", "File system type for volumes that do not specify one. If "
         "empty, the driver chooses.", _RUN_WORKER),
    Flag("max-grpc-log-length", _INT, "-1", "Maximum length of a CSI response in the log.",
         _RUN_WORKER,
         ignored="at verbosity 5, responses are logged in full"),
    Flag("reconcile-timeout", _DURATION, "10m", "Longest time for one comparison, including all "
         "pages of ListVolumes.", _RUN_WORKER, upstream=False),
    Flag("detach-without-missing-secret", _BOOL, "false", "Call the driver without secrets if the "
         "secret for a detach no longer exists.", _RUN_WORKER, upstream=False),
    Flag("strict-single-node", _BOOL, "true", "Publish a single-node volume to a node only after "
         "it has been detached from every other node; false leaves this check to the driver.",
         _RUN_WORKER, upstream=False),
    Flag("max-ops-per-node", _UINT, "0", "How many publish and unpublish calls may run at the same "
         "time for one node; 0 sets no limit.", _RUN_WORKER, upstream=False),
    Flag("attach-record-annotation", _STRING, "", "Annotation in which a VolumeAttachment stores "
         "what its detach needs after the PV is gone. If empty, this information is stored only in "
         "Redis.",
         _RUN_WORKER, upstream=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AttacherSettings:
    """The attacher's settings for one driver; the defaults are those of csi-attacher."""

    timeout_seconds: float = setting("timeout", FLAGS)
    worker_threads: int = setting("worker-threads", FLAGS)
    retry_interval_start_seconds: float = setting("retry-interval-start", FLAGS)
    retry_interval_max_seconds: float = setting("retry-interval-max", FLAGS)
    reconcile_seconds: float = setting("reconcile-sync", FLAGS)
    reconcile_timeout_seconds: float = setting("reconcile-timeout", FLAGS)
    max_entries: int = setting("max-entries", FLAGS)
    default_fstype: str = setting("default-fstype", FLAGS)
    writes_error_code: bool = True  # gate MutableCSINodeAllocatableCount
    detaches_without_missing_secret: bool = setting("detach-without-missing-secret", FLAGS)
    is_strict_single_node: bool = setting("strict-single-node", FLAGS)
    max_ops_per_node: int = setting("max-ops-per-node", FLAGS)
    record_annotation: str = setting("attach-record-annotation", FLAGS)


def read_settings(values: Mapping[str, Any]) -> AttacherSettings:
    """Build the settings from the flag values, keyed by flag name.

    Raises:
        ConfigError: the number of worker threads is zero; the exit code is 1 (A-003).
    """
    if values["worker-threads"] < 1:
        raise ConfigError("Option -worker-threads must be greater than zero", exit_code=1)
    return read(
        AttacherSettings,
        values,
        writes_error_code=values["feature-gates"].get(ALLOCATABLE_COUNT, True),
    )


PERMISSIONS: Final = (
    Permission("", ("persistentvolumes",), ("get", "list", "watch", "patch"), "finalizer"),
    Permission("storage.k8s.io", ("csinodes",), ("get", "list", "watch"), "node ids"),
    Permission(
        "storage.k8s.io",
        ("volumeattachments",),
        ("get", "list", "watch", "patch"),
        "finalizer and node id",
    ),
    Permission("storage.k8s.io", ("volumeattachments/status",), ("patch",), "result and errors"),
    Permission("", ("events",), ("create", "patch"), "errors for the claim's owner"),
    Permission("", ("secrets",), ("get",), "credentials of publish calls", feature="secrets"),
)
"""The permissions of A-110, plus events (DA-024) and without `list` on secrets, which is never
needed.
"""


def _attachments(kind: str, task: str, work_queue: str, *operations: str) -> Kind:
    return Kind(
        kind,
        task=task,
        work_queue=work_queue,
        operations=operations,
        subject=paths.ATTACHMENTS,
        noun="va",
        group_by=("spec", "nodeName"),
    )


SPEC: Final = Spec(
    name="attacher",
    program="csi-attacher",
    kinds=(
        _attachments(names.ATTACHMENTS, "attachments.sync", "csi-attacher-va", "attach"),
        _attachments(names.DETACHMENTS, "attachments.detach", "csi-attacher-va-detach", "detach"),
        _attachments(names.FORCED, "attachments.force", "csi-attacher-forced"),
        Kind(
            names.FINALIZERS,
            task="attachments.finalizer",
            work_queue="csi-attacher-pv",
            subject=paths.VOLUMES,
        ),
        Kind(
            names.RECONCILE,
            task="attachments.reconcile",
            work_queue="csi-attacher-reconcile",
        ),
    ),
    watches=(
        Watch(paths.ATTACHMENTS, Attachment, relists=is_another_kind, catalog=KIND_ATTACHMENTS),
        Watch(paths.VOLUMES, Volume, relists=is_another_kind),
        Watch(paths.CSI_NODES, CsiNode),
    ),
    make_rules=AttacherRules,
    lease_name=names.lease_name,
    flags=FLAGS,
    read_settings=read_settings,
    gates=GATES,
    permissions=PERMISSIONS,
)
