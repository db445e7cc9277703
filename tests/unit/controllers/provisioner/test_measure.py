"""How `csi_fleet_claim_to_volume_seconds` measures the time that a user waits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workers.constants import ANN_SELECTED_NODE, ANN_STORAGE_CLASS_BETA
from workers.controllers.provisioner import measure
from workers.controllers.provisioner.measure import creation, waited_seconds
from workers.observability.metrics import Metrics

STAMP, SECOND = "2026-01-02T03:04:05Z", 1767323045.0


@pytest.mark.parametrize(
    ("noticed", "begun"),
    [
        pytest.param(SECOND + 0.9, SECOND + 0.9, id="within the second of the stamp: at once"),
        pytest.param(SECOND + 9, SECOND + 1, id="noticed late: the waiting counts"),
        pytest.param(SECOND - 3, SECOND, id="our clock is behind"),
    ],
)
def test_a_claim_is_as_old_as_stamp_and_arrival_allow(noticed, begun):
    """The time stamp has whole seconds.

    Alone it would add half a second to each claim on average.
    """
    assert creation(STAMP, noticed) == begun


def test_no_stamp_is_no_time():
    with pytest.raises(ValueError, match="isoformat"):
        creation("", 1.0)


LATE = {"metadata": {"creationTimestamp": STAMP, "annotations": {ANN_SELECTED_NODE: "n1"}}}


@pytest.mark.parametrize(
    ("claim", "first_attempt", "waited"),
    [
        pytest.param(LATE, 30.0, 30.0, id="late binding: since the first attempt"),
        pytest.param(LATE, None, 3.0, id="late binding, first pass: since it came to the queue"),
        pytest.param({"metadata": {"creationTimestamp": STAMP}}, 30.0, 99.0, id="since creation"),
        pytest.param({"metadata": {}}, 30.0, None, id="nobody knows"),
    ],
)
def test_a_user_waits_since_the_creation_or_since_a_node_was_chosen(
    monkeypatch, claim, first_attempt, waited
):
    """The time is 100 s after the stamp; the reconcile began 1 s ago, after 2 s in the queue."""
    now = SECOND + 100
    clock = SimpleNamespace(time=lambda: now, monotonic=lambda: 11.0)
    monkeypatch.setattr(measure, "time", clock)
    record = SimpleNamespace(since=now - first_attempt) if first_attempt else None
    lease = SimpleNamespace(waited_seconds=2.0)
    work = SimpleNamespace(record=record, started=10.0, lease=lease)
    assert waited_seconds(work, claim) == waited


def test_l095_a_pass_counts_from_its_start(monkeypatch):
    """L-095: The upstream metrics give the durations of creation and deletion in seconds."""
    clock = SimpleNamespace(time=lambda: SECOND, monotonic=lambda: 12.5)
    monkeypatch.setattr(measure, "time", clock)
    metrics = Metrics()
    runtime, lease = SimpleNamespace(metrics=metrics), SimpleNamespace(waited_seconds=0.0)
    work = SimpleNamespace(
        runtime=runtime, record=None, started=10.0, lease=lease, driver=SimpleNamespace(name="d")
    )
    measure.saved(work, {"metadata": {}, "spec": {}})
    measure.deleted(work, {"spec": {"storageClassName": "c"}}, 11.0)
    seconds = [
        metrics.registry.get_sample_value(f"controller_{name}_duration_seconds_sum", labels)
        for name, labels in (
            ("persistentvolumeclaim_provision", {"class": "", "source": ""}),
            ("persistentvolume_delete", {"class": "c"}),
        )
    ]
    assert seconds == [2.5, 1.5]


@pytest.mark.parametrize(
    ("stamp", "count", "seconds"), [(STAMP, 1, 100.0), (None, 0, 0.0)], ids=["made", "nobody knows"]
)
def test_the_wait_of_a_user_is_counted_by_driver_and_class(monkeypatch, stamp, count, seconds):
    """The label is the class that provisions the claim: the beta annotation's, if there is one."""
    now = SECOND + 100
    clock = SimpleNamespace(time=lambda: now, monotonic=lambda: 10.0)
    monkeypatch.setattr(measure, "time", clock)
    metrics = Metrics()
    work = SimpleNamespace(
        runtime=SimpleNamespace(metrics=metrics),
        record=SimpleNamespace(since=SECOND - 5),
        started=10.0,
        lease=SimpleNamespace(waited_seconds=0.0),
        driver=SimpleNamespace(name="d"),
    )
    annotations = {ANN_STORAGE_CLASS_BETA: "beta"}
    metadata = {"creationTimestamp": stamp, "annotations": annotations}
    measure.saved(work, {"metadata": metadata, "spec": {"storageClassName": "fast"}})
    labels = {"driver_name": "d", "class": "beta"}
    name = "csi_fleet_claim_to_volume_seconds"
    found = [
        metrics.registry.get_sample_value(f"{name}_{part}", labels) or 0
        for part in ("count", "sum")
    ]
    assert found == [count, seconds]


def test_l095_a_failed_attempt_is_counted():
    """L-095: The labels are the class in the claim's spec and the kind of its data source."""
    metrics = Metrics()
    work = SimpleNamespace(runtime=SimpleNamespace(metrics=metrics))
    spec = {"storageClassName": "fast", "dataSource": {"kind": "VolumeSnapshot"}}
    measure.failed(work, {"metadata": {}, "spec": spec})
    name = "controller_persistentvolumeclaim_provision_failed_total"
    labels = {"class": "fast", "source": "VolumeSnapshot"}
    assert metrics.registry.get_sample_value(name, labels) == 1
