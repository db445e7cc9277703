"""The provisioner and the snapshotter exclude each other with locks (SNQ-003)."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from workers.constants import FINALIZER_SNAPSHOT_SOURCE
from workers.controllers.provisioner import sourcing
from workers.controllers.provisioner.volumes import VolumePass
from workers.errors import TransientError
from workers.kube.errors import ForbiddenError
from workers.queue.locks import Lock, Mode

VOLUME = {
    "metadata": {"name": "pv1", "uid": "u"},
    "spec": {"csi": {"driver": "d", "volumeHandle": "h1"}},
}


@dataclass
class Queue:
    """Grants each lock that is not busy."""

    busy: set[str] = field(default_factory=set)
    asked: list[Lock] = field(default_factory=list)

    def acquire(self, _lease: Any, lock: Lock) -> Lock | None:
        self.asked.append(lock)
        return lock if lock.name in self.busy else None


def world(*, can_be_cut: bool = True, busy: str = "") -> Any:
    driver = SimpleNamespace(name="d", supports=lambda _: can_be_cut)
    return SimpleNamespace(queue=Queue({busy})), driver


def test_no_volume_is_deleted_while_it_is_cut():
    """The lock names the volume in the storage, because no snapshotter knows PVs."""
    runtime, driver = world(busy="d#h1")
    outcome = VolumePass(runtime, driver, None, None, None, None).being_cut(VOLUME)  # type: ignore[arg-type]
    assert outcome is not None
    assert (outcome.action.value, outcome.lock) == ("blocked", Lock("d#h1", Mode.EXCLUSIVE))
    runtime, driver = world()
    assert VolumePass(runtime, driver, None, None, None, None).being_cut(VOLUME) is None  # type: ignore[arg-type]


def test_p612_a_migrated_volume_is_cut_by_its_csi_name():
    """P-612: The snapshotter knows only the driver's handle, which an in-tree volume lacks."""
    source = {"gcePersistentDisk": {"pdName": "disk-1"}}
    labels = {"topology.kubernetes.io/zone": "z1"}
    volume = {"metadata": {"name": "pv1", "uid": "u", "labels": labels}, "spec": source}
    runtime, driver = world()
    assert VolumePass(runtime, driver, None, None, None, None).being_cut(volume) is None  # type: ignore[arg-type]
    assert runtime.queue.asked == [
        Lock("d#projects/UNSPECIFIED/zones/z1/disks/disk-1", Mode.EXCLUSIVE)
    ]


@pytest.mark.parametrize("volume", [VOLUME, {"metadata": {"name": "pv1"}, "spec": {}}])
def test_drivers_without_snapshots_and_volumes_without_handle_cost_nothing(volume):
    """The deletion itself reports what is wrong with the PV."""
    runtime, driver = world(can_be_cut=volume is not VOLUME)
    assert VolumePass(runtime, driver, None, None, None, None).being_cut(volume) is None  # type: ignore[arg-type]
    assert runtime.queue.asked == []


def test_a_restore_waits_for_a_deletion_under_way():
    """The claim gets no event, and its back-off doesn't grow."""
    runtime, driver = world(busy="snapshot-content:c")
    work: Any = SimpleNamespace(runtime=runtime, driver=driver, lease=None)
    with pytest.raises(TransientError, match="snapshot content c is being deleted"):
        sourcing._hold_content(work, "c")
    sourcing._hold_content(work, "other")
    assert runtime.queue.asked[1] == Lock("snapshot-content:other", Mode.SHARED)


class Snapshots:
    """One snapshot; writing it may be forbidden."""

    def __init__(self, error: Exception | None = None) -> None:
        self.body: dict[str, Any] = {"metadata": {"name": "s", "namespace": "ns"}}
        self.error = error

    def get_snapshot(self, namespace: str, name: str) -> dict[str, Any]:
        assert (namespace, name) == ("ns", "s")
        return self.body

    def update_snapshot(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        self.body = body
        return body


@pytest.mark.parametrize("error", [None, ForbiddenError(403, "Forbidden", "no")])
def test_a_snapshot_under_restore_is_kept_where_that_is_allowed(error):
    """P-217: Without the permission to write the snapshot, the restore continues."""
    kube = Snapshots(error)
    effects = SimpleNamespace(kube=kube, reach=lambda *_: None)
    work: Any = SimpleNamespace(runtime=SimpleNamespace(effects=effects), lease=None)
    source: Any = SimpleNamespace(namespace="ns", name="s")
    sourcing._protect_snapshot(work, source, kube.body)
    wanted = None if error else [FINALIZER_SNAPSHOT_SOURCE]
    assert kube.body["metadata"].get("finalizers") == wanted
