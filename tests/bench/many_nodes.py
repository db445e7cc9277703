"""Measure what 1,800 nodes cost that join a cluster where capacity is published.

    python -m tests.bench.many_nodes [NODES] [WRITES_PER_SECOND]

Each node is a segment of its own, as for local volumes, so each gets one CSIStorageCapacity. The
run starts its own control plane, `csi-fleet run` and an example driver. Nodes and CSINodes are
created at once, while csi-fleet runs. The run prints the seconds until all objects exist, after the
first and after the last node, and the requests to the API server per node.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.bench.resizing import at_once
from tests.bench.usage import fleet_groups, memory, sample
from tests.support.controlplane import ControlPlane
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.kube_api import KubeApi
from tests.support.waiting import wait_until

KEY = "topology.bench.example.org/node"
NAMESPACE = "capacity"
OBJECTS = f"/apis/storage.k8s.io/v1/namespaces/{NAMESPACE}/csistoragecapacities"
LONGEST_SECONDS = 600


def join(api: KubeApi, driver: str, name: str) -> None:
    """Create a node and its CSINode."""
    metadata = {"name": name}
    api.create(
        {"apiVersion": "v1", "kind": "Node", "metadata": {**metadata, "labels": {KEY: name}}}
    )
    entry = {"name": driver, "nodeID": name, "topologyKeys": [KEY]}
    api.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": metadata,
            "spec": {"drivers": [entry]},
        }
    )


def places(api: KubeApi) -> list[str]:
    """Return the node of each capacity object."""
    return [one["nodeTopology"]["matchLabels"][KEY] for one in api.items(OBJECTS)]


def main() -> None:
    """Let the nodes join, and wait for their objects."""
    parser = argparse.ArgumentParser()
    parser.add_argument("nodes", type=int, nargs="?", default=1800)
    parser.add_argument("rate", type=int, nargs="?", default=100)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="mn-") as folder,
        ControlPlane(Path(folder) / "plane") as plane,
        plane.api() as api,
        DirectoryDriver(arguments=["--topology", f"{KEY}=n0"]) as driver,
    ):
        for kind, version, body in (
            ("Namespace", "v1", {}),
            (
                "StorageClass",
                "storage.k8s.io/v1",
                {"provisioner": driver.name, "volumeBindingMode": "WaitForFirstConsumer"},
            ),
        ):
            metadata = {"name": NAMESPACE}
            api.create({"apiVersion": version, "kind": kind, "metadata": metadata, **body})
        flags = (
            "--enable-capacity",
            "--capacity-ownerref-level=-1",
            f"--kube-api-capacity-qps={options.rate}",
            f"--kube-api-capacity-burst={options.rate}",
            "--workers=1",
        )
        env = {"NAMESPACE": NAMESPACE}
        with Fleet(Path(folder) / "f", plane.kubeconfig, [driver], *flags, env=env) as fleet:
            join(api, driver.name, "n0")
            wait_until(lambda: places(api) == ["n0"], 60, "the first object")
            time.sleep(5)
            assert fleet.process is not None
            groups = fleet_groups(fleet.process.pid)
            names = [f"n{number}" for number in range(1, options.nodes)]
            before, calls, started = (
                sample(api, groups),
                len(driver.calls("GetCapacity")),
                time.monotonic(),
            )
            at_once(lambda name: join(api, driver.name, name), names)
            joined = time.monotonic()
            reads = 0

            def all_there() -> bool:
                nonlocal reads
                reads += 1
                return bool(len(api.items(OBJECTS)) >= options.nodes)

            wait_until(all_there, LONGEST_SECONDS, "all objects", interval_seconds=1)
            ended = time.monotonic()
            time.sleep(10)  # what comes late counts too
            after = sample(api, groups)
            found = places(api)
            assert sorted(found) == sorted(["n0", *names]), "one object per node"
            made = Counter(after.requests) - Counter(before.requests)
            made -= Counter({"POST nodes": len(names), "POST csinodes": len(names)})
            made["LIST csistoragecapacities"] -= reads
            ours = {name: count for name, count in made.items() if _is_ours(name) and count > 0}
            cpu = {name: after.cpu[name] - before.cpu[name] for name in after.cpu}
            print(f"{len(names)} nodes joined in {joined - started:.1f} s")
            print(
                f"all objects {ended - started:.1f} s after the first, "
                f"{ended - joined:.1f} s after the last node; none twice, none missing"
            )
            print(f"requests per node: {sum(ours.values()) / len(names):.2f}: {ours}")
            asked = len(driver.calls("GetCapacity")) - calls
            print(f"GetCapacity calls per node: {asked / len(names):.2f}")
            print(
                f"CPU ms per node: {1000 * sum(cpu.values()) / len(names):.1f}: "
                f"{ {name: round(one, 1) for name, one in cpu.items()} }"
            )
            print(
                f"API server CPU ms per node: "
                f"{1000 * (after.api_cpu - before.api_cpu) / len(names):.1f}"
            )
            print(f"memory MiB: {memory(groups)}")


def _is_ours(name: str) -> bool:
    """Return True for requests about capacity, nodes or classes, which nobody else sends."""
    return name.rpartition(" ")[2] in {
        *("csistoragecapacities", "nodes", "csinodes", "storageclasses"),
    }


if __name__ == "__main__":
    main()
