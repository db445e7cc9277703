"""Runs a node for people:

`make node`, and `make demo NODE=1` with a pod that writes to a volume.
"""

from __future__ import annotations

import argparse
import signal
import sys

from tests.support.controlplane_binaries import GoBuildError
from tests.support.kube_api import JsonObject
from tests.support.node.cluster import NodeCluster, PartEndedError
from tests.support.node.debian import DebianError
from tests.support.node.namespaces import NamespacesError
from tests.support.node.requirements import lacking
from tests.support.node.scene import NodeScene, of_claim
from tests.support.node.workloads import DRIVER, install, sidecar, wait_available

UNABLE = (GoBuildError, DebianError, NamespacesError, PartEndedError, TimeoutError)


def main() -> int:
    """Start the node, show it, and wait for Ctrl-C; return the exit code."""
    parser = argparse.ArgumentParser(prog="node")
    parser.add_argument("--demo", action="store_true", help="a pod writes, a second one reads")
    parser.add_argument("--exit", action="store_true", help="end instead of staying")
    options = parser.parse_args()
    if reason := lacking():
        print(f"no node here: {reason}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with NodeCluster() as cluster:
            start(cluster)
            if options.demo:
                show(cluster)
            if not options.exit:
                print("Ctrl-C ends it and removes all of it.", flush=True)
                signal.pause()
    except KeyboardInterrupt:
        return 0
    except UNABLE as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def start(
    cluster: NodeCluster, objects: list[JsonObject] | None = None, driver: str = DRIVER
) -> None:
    """Run csi-fleet and a driver as pods; the example driver if no objects are given."""
    print(f"the node is Ready; KUBECONFIG={cluster.plane.kubeconfig}", flush=True)
    objects = objects or sidecar()
    install(cluster.api, objects, cluster.directory / "secrets", driver)
    wait_available(cluster.api, objects)
    for pod in cluster.api.items("/api/v1/pods"):
        print(f"  pod {pod['metadata']['namespace']}/{pod['metadata']['name']}", flush=True)


def show(cluster: NodeCluster) -> None:
    """Show the life of one volume in two pods."""
    with NodeScene(cluster) as scene:
        scene.claim("data")
        print("claim data: waits for a pod", flush=True)
        scene.printed("writer", "echo hello from the first pod > /v0/file", of_claim("data"))
        volume = scene.volume_of("data")["metadata"]["name"]
        print(f"pod writer: wrote into {volume}, and is gone", flush=True)
        text = scene.printed("reader", "cat /v0/file", of_claim("data"))
        print(f"pod reader: read {text!r}", flush=True)
    print("claim and volume are deleted", flush=True)


if __name__ == "__main__":
    sys.exit(main())
