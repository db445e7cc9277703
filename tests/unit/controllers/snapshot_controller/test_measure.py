"""Durations under upstream's metric names (SNC-090)."""

from __future__ import annotations

from types import SimpleNamespace

from tests.support.snapshot_world import CONTENT, SnapshotWorld
from workers.controllers.snapshot_controller import measure
from workers.explain.words import stamp
from workers.kube import paths

NAME = "snapshot_controller_operation_total_seconds"


def test_operations_are_measured_when_they_end(monkeypatch):
    """SNC-090, SND-027: Created, ready and deleted are each measured once.

    Each duration starts at a time in the object.
    """
    now = stamp("2026-01-01T00:01:30Z")
    monkeypatch.setattr(measure, "time", SimpleNamespace(time=lambda: now))
    world = SnapshotWorld()
    world.add_class(deletionPolicy="Retain")
    world.add_source()
    world.add_snapshot(metadata={"creationTimestamp": "2026-01-01T00:00:00Z"})
    world.run_snapshot()
    status = {"snapshotHandle": "sh", "creationTime": 10**18, "readyToUse": True}
    world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, {"status": status})
    world.run_snapshot()
    world.run_snapshot()
    world.api.mark_deleted(paths.SNAPSHOTS, "s", "ns")
    world.run_snapshot()
    for operation in ("CreateSnapshot", "CreateSnapshotAndReady", "DeleteSnapshot"):
        labels = {
            "driver_name": "snap.test",
            "operation_name": operation,
            "snapshot_type": "dynamic",
            "operation_status": "success",
        }
        value = world.context.metrics.registry.get_sample_value
        found = (value(f"{NAME}_count", labels), value(f"{NAME}_sum", labels))
        assert found == (1, 90), operation
