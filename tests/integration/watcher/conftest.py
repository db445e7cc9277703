"""A watcher in the test's process, between a real API server and a real Redis."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress

import pytest

from tests.support.redis_server import RedisServer
from tests.support.taking import due_keys, take
from tests.support.waiting import wait_until
from watcher.run import Watcher
from workers.kube import paths
from workers.kube.client import JSON_PATCH, KubeClient
from workers.kube.errors import NotFoundError
from workers.kube.resources import KubeResources
from workers.queue.catalog import CatalogReader, CatalogWriter
from workers.queue.connection import connect
from workers.queue.intents import IntentStore
from workers.queue.registry import DriverRegistry
from workers.queue.workqueue import WorkQueue


@pytest.fixture(scope="session")
def kubeconfig(request):
    """Return CSI_FLEET_TEST_KUBECONFIG, or start a cluster if the variable is not set."""
    given = os.environ.get("CSI_FLEET_TEST_KUBECONFIG")
    return given or str(request.getfixturevalue("control_plane").kubeconfig)


class Cluster:
    """The objects of one test, under unique names; removed after the test."""

    def __init__(self, resources):
        self.api = resources
        self.namespace = f"watcher-{uuid.uuid4().hex[:8]}"
        self.driver = f"{self.namespace}.csi"
        self._made = []
        self.create(paths.Resource("", "v1", "namespaces", "Namespace"), self.namespace)

    def create(self, resource, name, **body):
        namespace = self.namespace if resource.namespaced else ""
        metadata = {"name": name, **body.pop("metadata", {})}
        if namespace:
            metadata["namespace"] = namespace
        self._made.append((resource, name, namespace))
        identity = {"apiVersion": resource.api_version, "kind": resource.kind}
        return self.api.create(resource, {**identity, "metadata": metadata, **body})

    def storage_class(self, name, mode="Immediate"):
        full = f"{self.namespace}-{name}"
        self.create(paths.STORAGE_CLASSES, full, provisioner=self.driver, volumeBindingMode=mode)
        return full

    def claim(self, name, storage_class):
        return self.create(
            paths.CLAIMS,
            name,
            spec={
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": storage_class,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        )

    def volume(self, name, **spec):
        full = f"{self.namespace}-{name}"
        return self.create(
            paths.VOLUMES,
            full,
            spec={
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "csi": {"driver": self.driver, "volumeHandle": name},
                **spec,
            },
        )

    def clean_up(self):
        for resource, name, namespace in reversed(self._made):
            with suppress(NotFoundError):
                if resource in {paths.VOLUMES, paths.CLAIMS}:
                    self.api.client.patch(
                        resource.path(name, namespace=namespace),
                        [{"op": "add", "path": "/metadata/finalizers", "value": []}],
                        JSON_PATCH,
                    )
                self.api.delete(resource, name, namespace=namespace)


@pytest.fixture
def cluster(kubeconfig):
    cluster = Cluster(KubeResources(KubeClient.from_settings(kubeconfig)))
    yield cluster
    cluster.clean_up()


class Scene:
    """One Redis, any number of watchers, and the keys they add."""

    def __init__(self, kubeconfig, redis_client, cluster):
        self.cluster = cluster
        self.redis = redis_client
        self.queue = WorkQueue(redis_client, publish=lambda _: None)
        self.intents = IntentStore(redis_client)
        self.registry = DriverRegistry(redis_client)
        self.catalog = CatalogReader(redis_client)
        self._kubeconfig = kubeconfig
        self._watchers = []

    def register(self, **record):
        driver = self.cluster.driver
        self.registry.register(driver, {"name": driver, **record}, ttl_seconds=600)
        for kind in ("claims", "volumes", "cloning"):
            self.queue.set_limits(f"{kind}|{driver}", 100)

    def start_watcher(self, queue_type=WorkQueue, **options):
        watcher = Watcher(
            KubeClient.from_settings(self._kubeconfig),
            queue=queue_type(self.redis, publish=lambda _: None),
            catalog=CatalogWriter(self.redis),
            registry=self.registry,
            intents=self.intents,
            namespace=self.cluster.namespace,
            **options,
        )
        self._watchers.append(watcher)
        watcher.start()
        wait_until(lambda: watcher.is_synced, 30, "watcher is synced")
        return watcher

    def due_for(self, text):
        return [key for key in due_keys(self.redis) if text in key.text]

    def wait_until_due(self, text, timeout_seconds=10):
        return wait_until(
            lambda: self.due_for(text),
            timeout_seconds,
            f"{text} is due",
            interval_seconds=0.01,
        )[0]

    def finish(self, key):
        """Take and finish a key, as a worker does."""
        worker = WorkQueue(self.redis, publish=lambda _: None)
        worker.register_process()
        lease = take(worker, key)
        assert lease is not None
        worker.done(lease)
        worker.close()

    def stop(self):
        for watcher in self._watchers:
            watcher.stop()


@pytest.fixture
def scene(kubeconfig, redis_client, cluster):
    scene = Scene(kubeconfig, redis_client, cluster)
    yield scene
    scene.stop()


@pytest.fixture
def own_redis(redis_binary, tmp_path):
    """Return a Redis that the test is allowed to kill."""
    server = RedisServer(redis_binary, tmp_path, appendonly=True).start()
    yield server
    server.kill()


@pytest.fixture
def mortal_scene(kubeconfig, own_redis, cluster):
    client = connect(own_redis.url, socket_timeout_seconds=1.0)
    scene = Scene(kubeconfig, client, cluster)
    yield scene
    scene.stop()
    client.close()
