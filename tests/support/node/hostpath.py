"""Runs the CSI host-path driver on the node, with csi-fleet in place of every Go sidecar.

The driver's program is not part of this repository: the caller gives the path of a built one. One
pod contains the driver, a worker for all controllers, the registrar and the liveness probe. As with
the Go sidecars, all run as root, because only root can use the driver's socket.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.support.docker import base_archive
from tests.support.kube_api import JsonObject
from tests.support.node.images import Image, program_layer
from tests.support.node.workloads import DRIVER, sidecar

HOSTPATH = "hostpath.csi.k8s.io"
IMAGE = "localhost/hostpathplugin:1"
PLUGIN = f"/var/lib/kubelet/plugins/{HOSTPATH}"
NODE_FOLDERS = ("/var/lib/kubelet/pods", "/var/lib/kubelet/plugins")


def image(scratch: Path, program: Path) -> Image:
    """Return an image with the driver and Debian's mount, losetup and mkfs."""
    layers = [base_archive(), program_layer(scratch, program)]
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return Image(IMAGE, layers, {"Env": [path], "Entrypoint": [f"/{program.name}"]})


def objects() -> list[JsonObject]:
    """Return the example driver's objects, with this driver in its place."""
    renamed = yaml.safe_load_all(yaml.safe_dump_all(sidecar()).replace(DRIVER, HOSTPATH))
    found: list[JsonObject] = list(renamed)
    node_pods = next(one for one in found if one["kind"] == "DaemonSet")
    helper = node_pods["spec"]["template"]["spec"]["containers"][1]
    for item in found:
        if item["kind"] == "CSIDriver":
            item["spec"]["storageCapacity"] = False
        if item["kind"] == "Deployment" and item["metadata"]["name"] == "driver":
            item["spec"] |= {"replicas": 1, "strategy": {"type": "Recreate"}}
            _be_hostpath(item["spec"]["template"]["spec"], helper)
    return [one for one in found if one["kind"] not in {"DaemonSet", "PodDisruptionBudget"}]


def _be_hostpath(spec: JsonObject, helper: JsonObject) -> None:
    driver, worker = spec["containers"]
    driver |= {
        "image": IMAGE,
        "args": [
            *("--endpoint=unix:///run/csi/csi.sock", "--nodeid=node-1", f"--drivername={HOSTPATH}"),
            *("--statedir=/csi-data-dir", "--enable-attach", "--enable-controller-modify-volume"),
        ],
        "volumeMounts": [
            {"name": "socket", "mountPath": "/run/csi"},
            {"name": "data", "mountPath": "/csi-data-dir"},
            {"name": "devices", "mountPath": "/dev"},
            *(
                {"name": Path(one).name, "mountPath": one, "mountPropagation": "Bidirectional"}
                for one in NODE_FOLDERS
            ),
        ],
    }
    for one in (worker, helper):
        one["securityContext"] |= {"runAsUser": 0, "runAsNonRoot": False}
    # The worker's own health check uses this port.
    helper["args"] = [one.replace(":9808", ":9809") for one in helper["args"]]
    spec["containers"].append(helper)
    spec["terminationGracePeriodSeconds"] = 10
    spec["securityContext"].pop("fsGroup")
    spec["volumes"] = [one for one in spec["volumes"] if one["name"] not in {"socket", "storage"}]
    places: dict[str, Any] = {
        "socket": PLUGIN,
        "registration": "/var/lib/kubelet/plugins_registry",
        "data": f"{PLUGIN}/data",
        "devices": "/dev",
        **{Path(one).name: one for one in NODE_FOLDERS},
    }
    for name, place in places.items():
        source = {"path": place, "type": "DirectoryOrCreate"}
        spec["volumes"].append({"name": name, "hostPath": source})
    mounts = helper["volumeMounts"]
    mounts[0] = {"name": "socket", "mountPath": "/csi"}
