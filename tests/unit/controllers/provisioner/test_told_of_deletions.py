"""What a reconcile reports: its history for `explain`, the metrics, and the capacity controller."""

from __future__ import annotations

import pytest

from csi_client.errors import CsiError
from tests.support.fake_cluster import DRIVER
from workers.constants import FINALIZER_VOLUME
from workers.observability import trail

NAME = "pv1"
BUSY = CsiError(9, "busy")


@pytest.fixture
def volume(world):
    """Return a released PV of class `fast`."""
    metadata = {
        "name": NAME,
        "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
        "finalizers": [FINALIZER_VOLUME],
    }
    spec = {
        "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": "fast",
        "csi": {"driver": DRIVER, "volumeHandle": "h1"},
    }
    body = {"metadata": metadata, "spec": spec, "status": {"phase": "Released"}}
    return world.kube.add("persistentvolumes", body)


def notes(one_pass):
    """Return the history that a reconcile leaves for `explain`, without the age of each entry."""
    with trail.collect():
        one_pass()
        return [line.partition(" ")[2] for line in trail.collected()]


def deletions(world):
    """Return upstream's counters and histogram: succeeded, failed, timed."""
    return [
        world.runtime.metrics.registry.get_sample_value(
            f"controller_persistentvolume_delete_{name}", {"class": "fast"}
        )
        or 0
        for name in ("total", "failed_total", "duration_seconds_count")
    ]


def test_l095_a_deletion_is_counted_and_explained(world, volume):
    """L-095: Each failed attempt is counted once; only a successful deletion is timed."""
    world.client.delete_answers = [BUSY]
    assert notes(lambda: world.volume_pass(NAME)) == [f"error {BUSY}"]
    assert deletions(world) == [0, 1, 0]
    assert notes(lambda: world.volume_pass(NAME)) == []
    assert deletions(world) == [1, 1, 1]


def test_cap030_capacity_hears_of_a_deletion_that_succeeded(world, volume):
    """CAP-030: The storage then has more free capacity."""
    told = []

    class Publishing:
        def deleted(self, driver, volume):
            told.append((driver.name, volume["metadata"]["name"]))

    world.runtime.parts["capacity"] = Publishing()
    world.client.delete_answers = [BUSY]
    world.volume_pass(NAME)
    assert told == []
    world.volume_pass(NAME)
    assert told == [(DRIVER, NAME)]


def test_a_failed_attempt_is_explained_and_a_good_one_is_not(world, claim):
    """The history has the errors that the warning events report, and nothing else."""
    world.client.answers = [BUSY]
    assert notes(lambda: world.claim_pass(claim)) == [f"error {BUSY}"]
    assert notes(lambda: world.claim_pass(claim)) == []
