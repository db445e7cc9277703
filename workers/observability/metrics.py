"""All metrics of a process, each declared once with its unit and help text.

Upstream's names, labels, help texts and buckets come first (L-095, L-096, P-011, F-024, F-030,
CAP-080), followed by csi-fleet's own, which start with `csi_fleet_`. Labels are driver, class,
kind, state or code, but never a claim or a volume, because each value creates another series, which
is never dropped.

If PROMETHEUS_MULTIPROC_DIR is set when this module is first imported, values are stored in files in
that folder, and `workers.observability.exposition` sums them over all processes. So each gauge
declares how its values are combined: `livesum` and `livemax` use only running processes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

UNKNOWN_DRIVER: Final = "unknown-driver"
"""Driver label of calls that are made before the driver's name is known (F-030)."""

NO_STATUS: Final = "unknown-non-grpc"
"""Status label of calls that ended without a gRPC status (P-011)."""

GONE: Final = -math.inf
"""The value of a gauge that is no longer exported; the exposition hides such a gauge. With several
processes, a gauge cannot be removed; `livemax` then prefers another process's value.
"""

OUTCOMES: Final = ("done", "retry", "wait", "blocked")
"""The outcomes of a reconcile, as in `workers.engine.outcome`."""

_DEFAULT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_CSI_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)
_WORKQUEUE_BUCKETS: Final = tuple(float(f"1e{power}") for power in range(-8, 2))
# The buckets range from one API request to the slow retry of an infeasible claim.
_SNAPSHOT_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600)
_HEALTH_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30)
_CLAIM_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)


class _Known(MetricWrapperBase):
    """Caches the series in use, to avoid the library's checks and lock for 17 series per claim."""

    def labels(self, *labelvalues: Any, **labelkwargs: Any) -> Self:
        known: Any = self._metrics.get(labelvalues)
        return super().labels(*labelvalues, **labelkwargs) if known is None else known


class _Counter(_Known, Counter):
    pass


class _Gauge(_Known, Gauge):
    pass


class _Histogram(_Known, Histogram):
    pass


class Metrics:
    """The metrics of one process. Create one object and pass it on; two objects count separately.

    Every method is thread-safe, takes microseconds and never raises.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._declare_volumes()
        self._declare_work_queues()
        self._declare_process()
        self._declare_without_driver()
        self._declare_own()
        self._declare_shadow()
        self._declare_attachments()
        self._declare_health()

    def provisioned(self, claim: Mapping[str, Any], seconds: float) -> None:
        """Count a claim whose volume took `seconds` to be created and saved (L-095)."""
        labels = claim_labels(claim)
        self.provision_total.labels(*labels).inc()
        self.provision_seconds.labels(*labels).observe(seconds)

    def provision_failed(self, claim: Mapping[str, Any]) -> None:
        """Count a failed attempt to provision, without its duration (C-084)."""
        self.provision_failed_total.labels(*claim_labels(claim)).inc()

    def deleted(self, volume: Mapping[str, Any], seconds: float) -> None:
        """Count a volume that took `seconds` to be deleted."""
        self.delete_total.labels(volume_class(volume)).inc()
        self.delete_seconds.labels(volume_class(volume)).observe(seconds)

    def delete_failed(self, volume: Mapping[str, Any]) -> None:
        """Count a failed attempt to delete a volume."""
        self.delete_failed_total.labels(volume_class(volume)).inc()

    def expect(self, driver_name: str, kinds: Iterable[str]) -> None:
        """Export, with the value 0, the counters that must raise an alert at the first event.

        A rate ignores the first sample of a series. So if a counter appeared only with its first
        event, the rate would miss that event.
        """
        for kind in kinds:
            self.unexpected_errors.labels(kind, driver_name)
            self.lease_losses.labels(kind)
            for outcome in OUTCOMES:
                self.attempts.labels(kind, driver_name, outcome)

    def driver_left(self, driver_name: str) -> None:
        """Stop exporting the connection gauge of a driver that is no longer served here."""
        self.driver_connected.labels(driver_name).set(GONE)

    def csi_observer(
        self, driver_name: str = "", *, migrated: bool | None = None
    ) -> Callable[[str, str | None, float], None]:
        """Return an observer of a driver's calls.

        The observer's arguments are the method, the status code as Go spells it, and the
        duration in seconds.

        Args:
            driver_name: the driver's name; "" while it is unknown.
            migrated: True or False for a driver that replaces an in-tree plugin (P-009); otherwise
                None.
        """
        driver = driver_name or UNKNOWN_DRIVER
        label = "" if migrated is None else str(migrated).lower()

        def observe(method: str, code: str | None, seconds: float) -> None:
            self.csi_seconds.labels(driver, method, code or NO_STATUS, label).observe(seconds)

        return observe

    def _declare_volumes(self) -> None:
        self.provision_total = self._counter(
            "controller_persistentvolumeclaim_provision_total",
            "Total number of persistent volumes provisioned succesfully. Broken down by storage "
            "class name and source of the claim.",
            "class",
            "source",
        )
        self.provision_failed_total = self._counter(
            "controller_persistentvolumeclaim_provision_failed_total",
            "Total number of persistent volume provision failed attempts. Broken down by storage "
            "class name and source of the claim.",
            "class",
            "source",
        )
        self.provision_seconds = self._histogram(
            "controller_persistentvolumeclaim_provision_duration_seconds",
            "Latency in seconds to provision persistent volumes. Failed provisioning attempts are "
            "ignored. Broken down by storage class name and source of the claim.",
            _DEFAULT_BUCKETS,
            "class",
            "source",
        )
        self.delete_total = self._counter(
            "controller_persistentvolume_delete_total",
            "Total number of persistent volumes deleted succesfully. Broken down by storage class "
            "name.",
            "class",
        )
        self.delete_failed_total = self._counter(
            "controller_persistentvolume_delete_failed_total",
            "Total number of persistent volume delete failed attempts. Broken down by storage "
            "class name.",
            "class",
        )
        self.delete_seconds = self._histogram(
            "controller_persistentvolume_delete_duration_seconds",
            "Latency in seconds to delete persistent volumes. Failed deletion attempts are "
            "ignored. Broken down by storage class name.",
            _DEFAULT_BUCKETS,
            "class",
        )

    def _declare_work_queues(self) -> None:
        # workqueue_depth is read from Redis (see `workers.observability.lanes`).
        self.work_adds = self._counter(
            "workqueue_adds_total", "Total number of adds handled by workqueue", "name"
        )
        self.work_retries = self._counter(
            "workqueue_retries_total", "Total number of retries handled by workqueue", "name"
        )
        self.work_queue_seconds = self._histogram(
            "workqueue_queue_duration_seconds",
            "How long in seconds an item stays in workqueue before being requested.",
            _WORKQUEUE_BUCKETS,
            "name",
        )
        self.work_seconds = self._histogram(
            "workqueue_work_duration_seconds",
            "How long in seconds processing an item from workqueue takes.",
            _WORKQUEUE_BUCKETS,
            "name",
        )
        self.work_unfinished_seconds = self._gauge(
            "workqueue_unfinished_work_seconds",
            "How many seconds of work has done that is in progress and hasn't been observed by "
            "work_duration. Large values indicate stuck threads. One can deduce the number of "
            "stuck threads by observing the rate at which this increases.",
            "livesum",
            "name",
        )
        self.work_longest_seconds = self._gauge(
            "workqueue_longest_running_processor_seconds",
            "How many seconds has the longest running processor for workqueue been running.",
            "livemax",
            "name",
        )

    def _declare_process(self) -> None:
        self.csi_seconds = self._histogram(
            "csi_sidecar_operations_seconds",
            "Container Storage Interface operation duration with gRPC error code status total",
            _CSI_BUCKETS,
            "driver_name",
            "method_name",
            "grpc_status_code",
            "migrated",
        )
        self.leader_status = self._gauge(
            "leader_election_master_status",
            "Gauge of if the reporting system is master of the relevant lease, 0 indicates "
            "backup, 1 indicates master. 'name' is the string used to identify the lease. Please "
            "make sure to group by name.",
            "livemax",
            "name",
        )
        self.leader_slowpath = self._counter(
            "leader_election_slowpath_total",
            "Total number of slow path exercised in renewing leader leases. 'name' is the string "
            "used to identify the lease. Please make sure to group by name.",
            "name",
        )
        # With a single driver, driver_name is "" and is hidden (CAP-080).
        self.capacity_goal = self._gauge(
            "csistoragecapacities_desired_goal",
            "Number of CSIStorageCapacity objects that are supposed to be managed automatically.",
            "livemostrecent",
            "driver_name",
        )
        self.capacity_current = self._gauge(
            "csistoragecapacities_desired_current",
            "Number of CSIStorageCapacity objects that exist and are supposed to be managed "
            "automatically.",
            "livemostrecent",
            "driver_name",
        )
        self.capacity_obsolete = self._gauge(
            "csistoragecapacities_obsolete",
            "Number of CSIStorageCapacity objects that exist and will be deleted automatically. "
            "Objects that exist and may need an update are not considered obsolete and therefore "
            "not included in this value.",
            "livemostrecent",
            "driver_name",
        )

    def _declare_shadow(self) -> None:
        self.shadow_verdicts = self._counter(
            "csi_fleet_shadow_verdicts_total",
            "Number of actions of a Go sidecar, by how they compare with the shadow's expectation: "
            "agrees, differs, unforeseen, driver-failed, gone.",
            "driver_name",
            "verdict",
        )

    def _declare_without_driver(self) -> None:
        self.snapshot_seconds = self._histogram(
            "snapshot_controller_operation_total_seconds",
            "Total number of seconds spent by the controller on an operation from end to end.",
            _SNAPSHOT_BUCKETS,
            "driver_name",
            "operation_name",
            "snapshot_type",
            "operation_status",
        )
        # This is a gauge, because a counter would get the suffix `_total`, which upstream does not
        # have.
        self.data_sources = self._gauge(
            "volume_data_source_validator_operation_count",
            "Number of validations operations by result",
            "sum",
            "result",
        )

    def _declare_own(self) -> None:
        self.claim_seconds = self._histogram(
            "csi_fleet_claim_to_volume_seconds",
            "Seconds from the creation of a claim, or from the choice of its node, until its PV "
            "was saved.",
            _CLAIM_BUCKETS,
            "driver_name",
            "class",
        )
        self.attempts = self._counter(
            "csi_fleet_attempts_total",
            "Number of attempts that have ended, by kind of key, driver and outcome.",
            "kind",
            "driver_name",
            "outcome",
        )
        self.lease_losses = self._counter(
            "csi_fleet_lease_losses_total",
            "Number of attempts that were stopped because the lease of their key was lost.",
            "kind",
        )
        self.unexpected_errors = self._counter(
            "csi_fleet_unexpected_errors_total",
            "Number of reconciles that failed because of a bug in csi-fleet; the log contains the "
            "traceback.",
            "kind",
            "driver_name",
        )
        self.malformed_messages = self._counter(
            "csi_fleet_malformed_messages_total",
            "Number of unreadable messages in Celery's lists that were dropped.",
        )
        self.block_streams = self._gauge(
            "csi_fleet_snapshot_metadata_streams",
            "Number of streams of block metadata that are running.",
            "livesum",
            "driver_name",
        )
        self.block_bytes = self._counter(
            "csi_fleet_snapshot_metadata_bytes_total",
            "Bytes of block metadata that were passed on to backup programs.",
            "driver_name",
        )
        self.driver_connected = self._gauge(
            "csi_fleet_driver_connected",
            "Whether the driver's socket is connected: 1 means yes, 0 means no.",
            "livemax",
            "driver_name",
        )
        self.api_requests = self._counter(
            "csi_fleet_api_requests_total",
            "Number of requests to the API server, by verb, resource and HTTP status (0 means no "
            "response).",
            "verb",
            "resource",
            "code",
        )
        self.api_seconds = self._histogram(
            "csi_fleet_api_request_duration_seconds",
            "Seconds until the API server responded, by verb and resource; watches are not "
            "included.",
            _DEFAULT_BUCKETS,
            "verb",
            "resource",
        )
        self.events_dropped = self._counter(
            "csi_fleet_events_dropped_total",
            "Number of events that were not written, because the queue was full, the budget was "
            "used up or the API server rejected the event.",
            "reason",
        )
        self.watch_events = self._counter(
            "csi_fleet_watch_events_total",
            "Number of objects that the watcher received, by resource and event type.",
            "resource",
            "type",
        )

    def _declare_attachments(self) -> None:
        self.attachments = self._gauge(
            "csi_fleet_attachments",
            "Number of VolumeAttachments, by state, for drivers whose attachments are compared "
            "with ListVolumes.",
            "livemostrecent",
            "driver_name",
            "state",
        )
        self.compared = self._counter(
            "csi_fleet_attachments_compared_total",
            "Number of VolumeAttachments compared with ListVolumes, by finding.",
            "driver_name",
            "finding",
        )
        self.compare_seconds = self._histogram(
            "csi_fleet_attachments_compare_seconds",
            "Duration in seconds of a comparison of the VolumeAttachments with ListVolumes, "
            "including all pages.",
            _CSI_BUCKETS,
            "driver_name",
        )

    def _declare_health(self) -> None:
        self.health_probes = self._counter(
            "csi_volume_health_probe_total",
            "Number of controller-side volume health probes, by CSI method and result.",
            "driver_name",
            "method",
            "result",
        )
        self.health_probe_seconds = self._histogram(
            "csi_volume_health_probe_duration_seconds",
            "Duration in seconds of controller-side volume health probes, by CSI method.",
            _HEALTH_BUCKETS,
            "driver_name",
            "method",
        )
        self.health_volumes = self._gauge(
            "csi_controller_volume_health_status",
            "Number of volumes for which the driver reports a condition, by status.",
            "livemostrecent",
            "driver_name",
            "status",
        )
        self.health_dropped = self._counter(
            "csi_volume_health_status_writes_dropped_total",
            "Number of claims whose healthStatus was dropped by the API server, because its "
            "feature gate CSIVolumeHealth is off.",
            "driver_name",
        )
        self.health_unknown = self._counter(
            "csi_volume_health_unknown_condition_total",
            "Number of reported conditions of an unknown type, by the number of the type.",
            "driver_name",
            "status",
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return _Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, mode: Any, *labels: str) -> Gauge:
        return _Gauge(name, text, labels, registry=self.registry, multiprocess_mode=mode)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return _Histogram(name, text, labels, registry=self.registry, buckets=buckets)


def claim_labels(claim: Mapping[str, Any]) -> tuple[str, str]:
    """Return a claim's class and source as in `spec`; ignore the beta annotation (L-095, C-085)."""
    spec = claim.get("spec") or {}
    source = spec.get("dataSource") or {}
    return spec.get("storageClassName") or "", source.get("kind") or ""


def volume_class(volume: Mapping[str, Any]) -> str:
    """Return the name of a volume's class; "" if it has none."""
    return (volume.get("spec") or {}).get("storageClassName") or ""
