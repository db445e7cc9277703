"""One of two watchers lags: no key gets a second pass, and no event is lost (G3)."""

from __future__ import annotations

import threading

import pytest

from tests.support.taking import take
from tests.support.waiting import wait_until
from workers.constants import ANN_STORAGE_PROVISIONER
from workers.kube import paths
from workers.kube.client import MERGE_PATCH
from workers.queue.workqueue import WorkQueue

# kube-controller-manager does not change a claim with such a class, so all changes are the test's.
ABSENT = "absent"


@pytest.fixture
def gate():
    """While the gate is closed, the lagging watcher's keys wait, as if for CPU time."""
    gate = threading.Event()
    gate.set()
    yield gate
    gate.set()


@pytest.fixture
def lagging(gate):
    class Lagging(WorkQueue):
        def add(self, keys, **options):
            keys = list(keys)
            gate.wait(30)
            super().add(keys, **options)

        def add_events(self, versions):
            gate.wait(30)
            super().add_events(versions)

    return Lagging


def annotate(cluster, name, **annotations):
    path = paths.CLAIMS.path(name, namespace=cluster.namespace)
    body = {"metadata": {"annotations": annotations}}
    return cluster.api.client.patch(path, body, MERGE_PATCH)


def claim_text(cluster):
    return f"claims|{cluster.driver}|{cluster.namespace}/c1|"


def let_catch_up(watcher, gate, version):
    """Wait until the watcher has seen the claim's version, then open the gate until all is sent."""
    table = watcher.machine.rules("provisioner")._claims
    wait_until(
        lambda: version in {entry.version for entry in list(table.values())}, 10, "event seen"
    )
    gate.set()
    wait_until(lambda: watcher.outbox.is_idle, 10, "all sent")


@pytest.mark.parametrize("end", ["failed", "done"])
def test_cor15_an_event_told_late_for_the_second_time_is_no_second_pass(
    scene, cluster, gate, lagging, end
):
    """A late second report of an event causes no pass, after
    a failure or after success, because it would have no work.
    """
    scene.register()
    scene.start_watcher()
    late = scene.start_watcher(lagging)
    cluster.claim("c1", ABSENT)
    gate.clear()
    claim = annotate(cluster, "c1", **{ANN_STORAGE_PROVISIONER: cluster.driver})
    key = scene.wait_until_due(claim_text(cluster))
    worker = WorkQueue(scene.redis, publish=lambda _: None)
    worker.register_process()
    lease = take(worker, key)
    if end == "failed":
        worker.fail(lease, base_seconds=300, cap_seconds=300)
    else:
        worker.done(lease)
    let_catch_up(late, gate, claim["metadata"]["resourceVersion"])
    worker.pump(period_seconds=0)
    assert scene.due_for(claim_text(cluster)) == []
    worker.close()


def test_the_lagging_watcher_alone_loses_nothing(scene, cluster, gate, lagging):
    """If the quick watcher ends before it adds a key, the lagging watcher adds it."""
    scene.register()
    quick, late = scene.start_watcher(), scene.start_watcher(lagging)
    cluster.claim("c1", ABSENT)
    gate.clear()
    quick.stop()
    claim = annotate(cluster, "c1", **{ANN_STORAGE_PROVISIONER: cluster.driver})
    let_catch_up(late, gate, claim["metadata"]["resourceVersion"])
    scene.wait_until_due(claim_text(cluster))


def test_a_change_after_the_pass_is_told_by_whoever_sees_it_first(scene, cluster, gate, lagging):
    """L-011: a change after the pass is added by the first
    watcher that sees it, and is never treated as a repetition.
    """
    scene.register()
    scene.start_watcher()
    late = scene.start_watcher(lagging)
    cluster.claim("c1", ABSENT)
    gate.clear()
    annotate(cluster, "c1", **{ANN_STORAGE_PROVISIONER: cluster.driver})
    scene.finish(scene.wait_until_due(claim_text(cluster)))
    claim = annotate(cluster, "c1", note="changed")
    scene.finish(scene.wait_until_due(claim_text(cluster)))
    let_catch_up(late, gate, claim["metadata"]["resourceVersion"])
    assert scene.due_for(claim_text(cluster)) == []
