"""Metrics of the Go sidecars, with names, labels and buckets (L-095, L-096, P-011, F-024)."""

from __future__ import annotations

import pytest

from workers.controllers import catalogue
from workers.observability.metrics import Metrics, claim_labels
from workers.observability.requests import about_volume, csi_observer

PROVISION = "controller_persistentvolumeclaim_provision"
DELETE = "controller_persistentvolume_delete"
CLAIM = {"spec": {"storageClassName": "class1", "dataSource": {"kind": "VolumeSnapshot"}}}
CSI = "csi_sidecar_operations_seconds"

# Name, type and labels of every metric of the Go sidecars that this module declares.
UPSTREAM = [
    (f"{PROVISION}_total", "counter", ("class", "source")),
    (f"{PROVISION}_failed_total", "counter", ("class", "source")),
    (f"{PROVISION}_duration_seconds", "histogram", ("class", "source")),
    (f"{DELETE}_total", "counter", ("class",)),
    (f"{DELETE}_failed_total", "counter", ("class",)),
    (f"{DELETE}_duration_seconds", "histogram", ("class",)),
    ("workqueue_adds_total", "counter", ("name",)),
    ("workqueue_queue_duration_seconds", "histogram", ("name",)),
    ("workqueue_work_duration_seconds", "histogram", ("name",)),
    ("workqueue_unfinished_work_seconds", "gauge", ("name",)),
    ("workqueue_longest_running_processor_seconds", "gauge", ("name",)),
    ("workqueue_retries_total", "counter", ("name",)),
    (CSI, "histogram", ("driver_name", "method_name", "grpc_status_code", "migrated")),
    ("leader_election_master_status", "gauge", ("name",)),
    ("leader_election_slowpath_total", "counter", ("name",)),
    ("csistoragecapacities_desired_goal", "gauge", ("driver_name",)),
    ("csistoragecapacities_desired_current", "gauge", ("driver_name",)),
    ("csistoragecapacities_obsolete", "gauge", ("driver_name",)),
]


@pytest.fixture
def metrics():
    return Metrics()


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def buckets(metrics, name):
    family = next(f for f in metrics.registry.collect() if f.name == name)
    return [float(s.labels["le"]) for s in family.samples if s.name.endswith("_bucket")]


@pytest.mark.parametrize(("name", "kind", "labels"), [pytest.param(*r, id=r[0]) for r in UPSTREAM])
def test_upstream_metric(metrics, name, kind, labels):
    found = {
        (m._name + ("_total" if m._type == "counter" else ""), m._type, m._labelnames)
        for m in vars(metrics).values()
        if hasattr(m, "_labelnames")
    }
    assert (name, kind, labels) in found


def test_c083_success_counts_and_lasts(metrics):
    metrics.provisioned(CLAIM, 0.3)
    labels = {"class": "class1", "source": "VolumeSnapshot"}
    assert value(metrics, f"{PROVISION}_total", **labels) == 1
    assert value(metrics, f"{PROVISION}_duration_seconds_count", **labels) == 1
    assert value(metrics, f"{PROVISION}_duration_seconds_sum", **labels) == 0.3
    assert value(metrics, f"{PROVISION}_failed_total", **labels) is None


def test_c084_failure_counts_and_has_no_duration(metrics):
    metrics.provision_failed(CLAIM)
    labels = {"class": "class1", "source": "VolumeSnapshot"}
    assert value(metrics, f"{PROVISION}_failed_total", **labels) == 1
    assert value(metrics, f"{PROVISION}_duration_seconds_count", **labels) is None
    assert value(metrics, f"{PROVISION}_total", **labels) is None


@pytest.mark.parametrize(("claim", "labels"), [
    pytest.param({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "b"}},
                  "spec": {}}, ("", ""), id="C-085 beta class annotation only"),
    pytest.param({"spec": {"storageClassName": "c", "dataSourceRef": {"kind": "X"}}}, ("c", ""),
                 id="L-095 dataSourceRef does not count"),
    pytest.param({"spec": {"storageClassName": None, "dataSource": None}}, ("", ""),
                 id="L-095 nil"),
    pytest.param({}, ("", ""), id="L-095 no spec"),
])  # fmt: skip
def test_claim_labels(claim, labels):
    assert claim_labels(claim) == labels


def test_c085_empty_class_is_a_label_value(metrics):
    metrics.provisioned({"spec": {}}, 1)
    assert value(metrics, f"{PROVISION}_total", **{"class": "", "source": ""}) == 1


def test_deletions(metrics):
    volume = {"spec": {"storageClassName": "c"}}
    metrics.deleted(volume, 2)
    metrics.delete_failed(volume)
    metrics.delete_failed({"spec": {}})
    assert value(metrics, f"{DELETE}_total", **{"class": "c"}) == 1
    assert value(metrics, f"{DELETE}_duration_seconds_sum", **{"class": "c"}) == 2
    assert value(metrics, f"{DELETE}_failed_total", **{"class": "c"}) == 1
    assert value(metrics, f"{DELETE}_failed_total", **{"class": ""}) == 1


@pytest.mark.parametrize(("driver", "migrated", "code", "labels"), [
    pytest.param("d", None, "OK", ("d", "OK", ""), id="F-030 plain driver"),
    pytest.param("d", True, "DeadlineExceeded", ("d", "DeadlineExceeded", "true"),
                 id="P-011 migrated driver"),
    pytest.param("d", False, "OK", ("d", "OK", "false"), id="P-011 not migrated call"),
    pytest.param("", None, "OK", ("unknown-driver", "OK", ""), id="F-030 name not known yet"),
    pytest.param("d", None, None, ("d", "unknown-non-grpc", ""), id="P-011 no status"),
])  # fmt: skip
def test_csi_call(metrics, driver, migrated, code, labels):
    method = "/csi.v1.Controller/CreateVolume"
    metrics.csi_observer(driver, migrated=migrated)(method, code, 0.2)
    names = ("driver_name", "grpc_status_code", "migrated")
    found = value(
        metrics, f"{CSI}_count", method_name=method, **dict(zip(names, labels, strict=True))
    )
    assert found == 1


def test_buckets_are_upstreams(metrics):
    """L-095, L-096, P-011: dashboards and alerts for the Go sidecars keep working."""
    metrics.provisioned({}, 1)
    metrics.csi_observer("d")("m", "OK", 1)
    metrics.work_seconds.labels("claims").observe(1)
    inf = float("inf")
    default = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, inf]
    csi = [0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600, inf]
    assert buckets(metrics, f"{PROVISION}_duration_seconds") == default
    assert buckets(metrics, CSI) == csi
    assert buckets(metrics, "workqueue_work_duration_seconds") == [
        *(pytest.approx(1e-8 * 10**i) for i in range(10)), inf,
    ]  # fmt: skip


def test_l096_cloning_has_a_queue_name_of_its_own():
    names = catalogue.work_queues()
    assert [names[kind] for kind in ("claims", "volumes", "capacity", "cloning")] == [
        "claims", "volumes", "csistoragecapacity", "cloning-protection",
    ]  # fmt: skip


def test_two_instances_count_apart():
    first, second = Metrics(), Metrics()
    first.provisioned(CLAIM, 1)
    labels = {"class": "class1", "source": "VolumeSnapshot"}
    assert value(second, f"{PROVISION}_total", **labels) is None


def test_known_series_are_found_again_and_mistakes_still_seen(metrics):
    """Most counting in a reconcile uses a cache, which must never accept wrong labels."""
    first = metrics.unexpected_errors.labels("claim", "d")
    assert metrics.unexpected_errors.labels("claim", "d") is first
    assert metrics.unexpected_errors.labels(driver_name="d", kind="claim") is first
    with pytest.raises(ValueError, match="label count"):
        metrics.unexpected_errors.labels("claim")


@pytest.mark.parametrize(
    ("replaces", "label"), [(True, ["false", "true", "false"]), (False, [None] * 3)]
)
def test_label_migrated_follows_the_volume(metrics, replaces, label):
    """P-009, A-006: all calls of a driver that replaces a plug-in have it, other drivers' none."""
    observe = csi_observer(metrics, lambda _: replaces)
    observe("d", "/before", "OK", 0.1)
    with about_volume(is_migrated=True):
        observe("d", "/during", "OK", 0.1)
    observe("d", "/after", "OK", 0.1)
    names = ("/before", "/during", "/after")
    found = {
        sample.labels["method_name"]: sample.labels["migrated"] or None
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"{CSI}_count"
    }
    assert [found[name] for name in names] == label
