"""The node's pods: csi-fleet's own manifests, with the example driver added.

The manifests are rendered from `k8s/` as kustomize would render them. This module adds only what
their documentation tells an operator to add: a driver's image and arguments, further controllers,
and the driver's pods on each node.
"""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support.docker import REDIS_IMAGE
from tests.support.fleet import ROOT
from tests.support.kube_api import JsonObject, KubeApi
from tests.support.kustomize import CLUSTER_KINDS, accumulate, pod_spec, render
from tests.support.node.images import EXAMPLE_IMAGE, FLEET_IMAGE
from tests.support.waiting import wait_until

DRIVER = "directory.csi.example.org"
NAMESPACE = "csi-driver-example"
CONTROLLERS = ("provisioner", "attacher", "resizer", "snapshotter", "snapshot-controller")
ZONE = "topology.directory.csi.example.org/zone"
PLUGIN = f"/var/lib/kubelet/plugins/{DRIVER}"
STORAGE = f"{PLUGIN}/storage"
CAPABILITIES = (
    "CONTROLLER_SERVICE",
    "CREATE_DELETE_VOLUME",
    "LIST_VOLUMES",
    "LIST_VOLUMES_PUBLISHED_NODES",
    "GET_CAPACITY",
    "CREATE_DELETE_SNAPSHOT",
    "LIST_SNAPSHOTS",
    "CLONE_VOLUME",
    "SINGLE_NODE_MULTI_WRITER",
    "PUBLISH_UNPUBLISH_VOLUME",
    "EXPAND_VOLUME",
    "MODIFY_VOLUME",
    "ONLINE",
)
NODE_PODS = ROOT / "k8s/example/node.yaml"
DRIVER_ARGUMENTS = [
    f"--name={DRIVER}",
    f"--root={STORAGE}",
    "--node-id=node-1",
    "--mount",
    "--node-expansion-required",
    f"--capabilities={','.join(CAPABILITIES)}",
    f"--topology={ZONE}=z1",
    # Shorter than the pods' grace period. On a busy machine a call took 1.7 s: it was cut off after
    # 1 s, and was still running when the next pod sent the same call.
    "--grace=8",
]


def sidecar() -> list[JsonObject]:
    """Return `k8s/overlays/prod-sidecar` with all controllers next to the example driver."""
    objects = render(ROOT / "k8s/overlays/prod-sidecar")
    for name in CONTROLLERS[1:]:
        objects = accumulate(ROOT / "k8s/components" / f"controller-{name}", objects)
    objects = [one for one in objects if "monitoring.coreos.com" not in one["apiVersion"]]
    objects += [_for_driver(one) for one in objects if _is_of_a_controller(one)]
    objects += yaml.safe_load_all(NODE_PODS.read_text())
    for item in objects:
        if item["metadata"]["name"] == "csi-fleet-serves-driver-example" and "rules" in item:
            item["rules"][0]["resourceNames"] = [DRIVER]
        spec = pod_spec(item)
        if spec is None:
            continue
        for container in spec["containers"]:
            if container["image"].startswith("example.invalid/"):
                _be_the_driver(spec, container)
            if container.get("args", [""])[0] in {"watcher", "worker"}:
                container["args"] = _all_controllers(container["args"])
            for variable in container.get("env", ()):
                if variable.get("value", "").startswith("worker."):
                    variable["value"] = f"worker.{DRIVER}"
            if container["image"] == "csi-fleet":
                container["image"] = FLEET_IMAGE
            if container["image"].startswith("redis:"):
                container["image"] = REDIS_IMAGE  # the official one is held by digest
    return objects


def _all_controllers(arguments: list[str]) -> list[str]:
    """Extend the arguments to all controllers; flags whose defaults differ need a prefix."""
    found = [f"--controllers={','.join(CONTROLLERS)}"]
    for one in arguments:
        if one.startswith("--timeout="):
            limit = one.removeprefix("--")
            found += [f"--{name}-{limit}" for name in CONTROLLERS if name != "snapshot-controller"]
        else:
            found.append(one)
    return [*found[1:], found[0]]


def _be_the_driver(spec: JsonObject, container: JsonObject) -> None:
    container["image"] = EXAMPLE_IMAGE
    container["args"] = ["--endpoint=unix:///run/csi/csi.sock", *DRIVER_ARGUMENTS]
    container["volumeMounts"].append({"name": "storage", "mountPath": STORAGE})
    source = {"path": STORAGE, "type": "DirectoryOrCreate"}
    spec["volumes"].append({"name": "storage", "hostPath": source})


def _is_of_a_controller(item: JsonObject) -> bool:
    names = [f"csi-fleet-worker-{one}" for one in CONTROLLERS[1:]]
    return item["kind"] == "ClusterRoleBinding" and item["metadata"]["name"] in names


def _for_driver(binding: JsonObject) -> JsonObject:
    """Return the binding with the account of the driver's pods."""
    made = copy.deepcopy(binding)
    made["metadata"]["name"] += "-driver-example"
    made["subjects"] = [{"kind": "ServiceAccount", "name": "driver", "namespace": NAMESPACE}]
    return made


def install(api: KubeApi, objects: list[JsonObject], secrets: Path, driver: str = DRIVER) -> None:
    """Apply everything, with fresh passwords and certificates, without waiting."""
    place = f"{driver}={NAMESPACE}"  # with a Redis user and a records key of its own
    command = ["sh", str(ROOT / "k8s/make-secrets.sh"), str(secrets), "csi-fleet", place]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    order = sorted(objects, key=lambda one: one["kind"] not in CLUSTER_KINDS)
    for item in sorted(order, key=lambda one: one["kind"] != "Namespace"):
        if item["kind"] == "Namespace":
            api.apply(item)
    for item in yaml.safe_load_all(made):
        api.apply(item)
    for item in sorted(order, key=lambda one: one["kind"] != "Namespace"):
        api.apply(item)


def wait_available(api: KubeApi, objects: list[JsonObject], seconds: float = 240) -> None:
    """Wait until all pods of every workload are ready."""
    for item in objects:
        if item["kind"] in {"Deployment", "DaemonSet", "StatefulSet"}:
            path = _path(item)
            name = f"{item['kind']} {item['metadata']['name']} is available"
            wait_until(lambda path=path: is_available(api.get(path)), seconds, name)  # type: ignore[misc]


def is_available(workload: JsonObject) -> bool:
    """Return True if enough ready pods have the newest template; older pods may still be ending."""
    status: dict[str, Any] = workload.get("status", {})
    if status.get("observedGeneration") != workload["metadata"]["generation"]:
        return False
    if workload["kind"] == "DaemonSet":
        wanted = status["desiredNumberScheduled"]
        return bool(wanted) and status.get("numberReady") == wanted == status.get(
            "updatedNumberScheduled"
        )
    wanted = workload["spec"]["replicas"]
    counts = [status.get(one, 0) for one in ("replicas", "updatedReplicas", "readyReplicas")]
    return counts == [wanted] * 3


def _path(item: JsonObject) -> str:
    plural = f"{item['kind'].lower()}s"
    meta = item["metadata"]
    return f"/apis/{item['apiVersion']}/namespaces/{meta['namespace']}/{plural}/{meta['name']}"
