"""A watcher's memory depends on the number of undecided objects, not on the number of lists."""

from __future__ import annotations

import gc
import json
import tracemalloc

import pytest

from tests.support.fake_api import FakeApi, Reply
from tests.support.waiting import wait_until
from watcher.run import Watcher
from workers.kube.client import KubeClient
from workers.queue.catalog import CatalogWriter
from workers.queue.intents import IntentStore
from workers.queue.registry import DriverRegistry
from workers.queue.workqueue import WorkQueue

DRIVER = "memory.csi"
CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
PAIRS, UNDECIDED = 400, 20
RELISTS = 25


def claim(number: int) -> dict:
    uid = f"{number:08x}-0000-4000-8000-000000000000"
    spec = {} if number < UNDECIDED else {"volumeName": f"pvc-{uid}"}
    annotations = {"volume.kubernetes.io/storage-provisioner": DRIVER, "note": "x" * 500}
    metadata = {"name": f"data-{number}", "namespace": "team", "uid": uid}
    return {
        "metadata": {**metadata, "resourceVersion": str(number), "annotations": annotations},
        "spec": {"storageClassName": "fast", **spec},
        "status": {"phase": "Bound" if spec else "Pending"},
    }


def volume(number: int) -> dict:
    name = f"pvc-{number}"
    finalizers = ["external-provisioner.volume.kubernetes.io/finalizer"]
    return {
        "metadata": {"name": name, "resourceVersion": str(number), "finalizers": finalizers},
        "spec": {
            "persistentVolumeReclaimPolicy": "Delete",
            "csi": {"driver": DRIVER, "volumeHandle": name},
        },
        "status": {"phase": "Bound"},
    }


@pytest.fixture
def api():
    """Serve the same lists repeatedly, with watches that send no event."""
    items = {
        CLAIMS: [claim(number) for number in range(PAIRS)],
        VOLUMES: [volume(number) for number in range(PAIRS)],
    }
    bodies = {
        path: json.dumps({"metadata": {"resourceVersion": "900"}, "items": found}).encode()
        for path, found in items.items()
    }
    empty = json.dumps({"metadata": {"resourceVersion": "900"}, "items": []}).encode()
    with FakeApi() as api:
        api.other = lambda request: Reply(body=bodies.get(request.path, empty))
        yield api


@pytest.fixture
def watcher(api, redis_client):
    DriverRegistry(redis_client).register(DRIVER, {"name": DRIVER}, ttl_seconds=600)
    watcher = Watcher(
        KubeClient.from_settings("", api.url),
        queue=WorkQueue(redis_client, publish=lambda keys: None),
        catalog=CatalogWriter(redis_client),
        registry=DriverRegistry(redis_client),
        intents=IntentStore(redis_client),
        namespace="default",
    )
    watcher.start()
    wait_until(lambda: watcher.is_synced, 30, "watcher is synced")
    yield watcher
    watcher.stop()


def relist(watcher, api, times: int) -> int:
    """List claims and volumes this often; return the bytes that csi-fleet's code then holds."""
    for _ in range(times):
        api.requests.clear()
        reflectors = list(watcher.reflectors.values())
        before = {reflector: reflector.health.lists for reflector in reflectors}
        for reflector in reflectors:
            reflector.relist()
        for reflector, lists in before.items():
            wait_until(
                lambda reflector=reflector, lists=lists: (
                    reflector.health.lists > lists and api.count(reflector.path, watch=True)
                ),
                20,
                f"{reflector.path} again",
                interval_seconds=0.01,
            )
        wait_until(lambda: watcher.is_synced, 20, "in Redis")
    gc.collect()
    ours = [
        tracemalloc.Filter(inclusive=True, filename_pattern=pattern)
        for pattern in ("*/watcher/*", "*/workers/*")
    ]
    held = tracemalloc.take_snapshot().filter_traces(ours)
    return sum(one.size for one in held.statistics("filename"))


def test_memory_is_unchanged_over_repeated_relists(watcher, api):
    """Memory does not grow with the number of lists.

    Lists after status 410 repeat for months, so one text kept per list would add up.
    """
    tracemalloc.start()
    try:
        before = relist(watcher, api, 5)
        grown = relist(watcher, api, RELISTS) - before
    finally:
        tracemalloc.stop()
    assert watcher.machine.rules("provisioner").counts()["claims"] == UNDECIDED
    one_text_of_each_undecided = 60 * RELISTS * UNDECIDED
    assert grown < one_text_of_each_undecided
