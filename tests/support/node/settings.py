"""The configuration of containerd, its network plug-in and kubelet on the node."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.support.node.images import PAUSE_IMAGE

PODS = "10.88.0.0/16"


def containerd(directory: Path, debian: Path) -> str:
    """Return containerd's config.toml."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = "{directory}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "{directory}/containerd.sock"
[{cri}]
sandbox_image = "{PAUSE_IMAGE}"
# A machine may not lower it, and a test has no need to.
restrict_oom_score_adj = true
disable_apparmor = true
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
BinaryName = "{debian}/usr/sbin/runc"
[{cri}.cni]
bin_dir = "{debian}/usr/lib/cni"
conf_dir = "{directory}/cni"
"""


def network(directory: Path) -> str:
    """Return the network configuration: a link from each pod to the node, which forwards
    packets."""
    ipam = {
        "type": "host-local",
        "subnet": PODS,
        "dataDir": f"{directory}/addresses",
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins = [{"type": "ptp", "ipam": ipam}]
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins})


def kubelet(directory: Path, address: str, cgroup: str) -> str:
    """Return kubelet's configuration file."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": address,
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroup,
            "containerRuntimeEndpoint": f"unix://{directory}/containerd.sock",
            # Only this machine can reach the link.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "clusterDNS": [address],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "podLogsDir": f"{directory}/pods",
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            # A full disk of this machine must not evict pods.
            "evictionHard": {"nodefs.available": "0%", "nodefs.inodesFree": "0%",
                             "imagefs.available": "0%", "memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
            # How long a mounted volume may wait for its expansion; a minute by default.
            "syncFrequency": "10s",
        }
    )  # fmt: skip
