"""A driver's DaemonSet: a driver and a csi-fleet on each node.

All nodes share one driver name, one namespace and the API server. Either they also share one Redis,
or each has its own Redis, as drop-ins do, and does not know the others.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import Self

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet, Scene
from tests.support.kube_api import JsonObject
from tests.support.waiting import wait_until

KEY = "topology.nodes.test/node"
FLAGS = (
    "--node-deployment",
    "--strict-topology",
    "--immediate-topology=false",
    "--node-deployment-base-delay=1s",
    "--node-deployment-max-delay=3s",
    "--timeout=4s",
    "--workers=1",
)


class Node:
    """One node; the folder of its program may be deleted while the node is down."""

    def __init__(
        self,
        name: str,
        driver: str,
        directory: Path,
        kubeconfig: Path,
        scene: Scene,
        *flags: str,
        redis_url: str = "",
    ) -> None:
        self.name = name
        self.driver = DirectoryDriver(
            driver, arguments=["--topology", f"{KEY}={name}", "--node-id", name, "--ids-of-node"]
        )
        space = scene.namespace
        self.fleet = Fleet(
            directory / name,
            kubeconfig,
            [self.driver],
            *FLAGS,
            *flags,
            redis_url=redis_url,
            env={
                "NODE_NAME": name,
                "NAMESPACE": space,
                "POD_NAMESPACE": space,
                "CSI_FLEET_RECORDS_KEY": sha256(scene.name.encode()).hexdigest(),
            },
        )

    def kill_fleet(self, *, wipe: bool = True) -> None:
        """Kill all processes of the node and empty its Redis, as when a node loses power."""
        assert self.fleet.process is not None
        for part in ("redis-server", "worker", "watcher", "beat"):
            for pid in self.fleet.parts(part):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.fleet.process.kill()
        if wipe:
            shutil.rmtree(self.fleet.state, ignore_errors=True)

    def created(self) -> list[str]:
        return [str(one.request["name"]) for one in self.driver.calls("CreateVolume")]

    def deleted(self) -> list[str]:
        return [str(one.request["volume_id"]) for one in self.driver.calls("DeleteVolume")]


class NodeWorld:
    """The nodes `<scene>-a`, `-b`, ... of one driver."""

    def __init__(
        self,
        directory: Path,
        kubeconfig: Path,
        scene: Scene,
        letters: str,
        *flags: str,
        redis_url: str = "",
    ) -> None:
        self.scene = scene
        self.driver = f"{scene.name}.csi.example.org"
        self.nodes = [
            Node(
                f"{scene.name}-{letter}",
                self.driver,
                directory,
                kubeconfig,
                scene,
                *flags,
                redis_url=redis_url,
            )
            for letter in letters
        ]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for node in self.nodes:
                stack.enter_context(node.driver)
            for node in self.nodes:
                stack.callback(node.fleet.stop)
                node.fleet.start(wait=False)
            for node in self.nodes:
                node.fleet.wait_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.scene.clean_up()
        finally:
            self._stack.close()

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __getitem__(self, index: int) -> Node:
        return self.nodes[index]

    def late(self) -> str:
        mode = "WaitForFirstConsumer"
        return self.scene.storage_class(self.driver, "late", volumeBindingMode=mode)

    def now(self) -> str:
        return self.scene.storage_class(self.driver, "now", volumeBindingMode="Immediate")

    def stored(self) -> dict[str, list[str]]:
        """Return the ids of the volumes in each node's storage."""
        return {one.name: sorted(one.driver.volumes()) for one in self.nodes}

    def check(self) -> None:
        """Assert that the nodes store exactly one volume for each PV, on the node that the PV
        names, and no other."""
        owned = sorted((node_of(one), handle_of(one)) for one in self.scene.volumes())
        found = sorted((node, volume) for node, some in self.stored().items() for volume in some)
        assert found == owned, f"stored {found}, PVs {owned}"
        assert not any(one.driver.concurrent_calls() for one in self.nodes)

    def delete_all(self, seconds: float = 90) -> None:
        for name in self.scene.claims():
            self.scene.delete(name)
        wait_until(
            lambda: not self.scene.volumes() and not any(self.stored().values()),
            seconds,
            "all is deleted",
        )

    def copies(self) -> list[str]:
        path = f"/api/v1/namespaces/{self.scene.namespace}/configmaps"
        return [
            one["metadata"]["name"]
            for one in self.scene.api.items(path)
            if one["metadata"]["name"].startswith("csi-fleet-intent-")
        ]


def handle_of(volume: JsonObject) -> str:
    return str(volume["spec"]["csi"]["volumeHandle"])


def node_of(volume: JsonObject) -> str:
    terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    return str(terms[0]["matchExpressions"][0]["values"][0])
