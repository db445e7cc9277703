"""Runs csi-fleet's containers of rendered manifests as processes, with what kubelet would give
them.

```
cluster = Kubelet(plane, api, redis, directory, objects)
pod = cluster.start("Deployment", "csi-fleet", "watcher")     # its own arguments and environment
pod.mount("/run/csi")                                         # what is mounted there
pod.probe("readinessProbe")
```
Arguments, environment, mounts, account and probes are the manifest's. Changed are only addresses
of this machine: mount paths, the Redis host, listening ports.
"""

from __future__ import annotations

import base64
import copy
import re
import subprocess
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import requests
import yaml

from tests.support.controlplane import ControlPlane
from tests.support.fleet import ROOT, environment, program
from tests.support.kube_api import JsonObject, KubeApi
from tests.support.kustomize import CLUSTER_KINDS, pod_spec
from tests.support.processes import Process, free_port, start_process
from tests.support.secure_redis import SecureRedis
from tests.support.waiting import wait_until

# Drivers whose workers have a Redis user of their own, with their namespaces.
DRIVERS = ("csi.example.org=csi-driver-example", "csi.example.org=csi-driver-node-example")
READY_SECONDS = 60
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
REDIS_HOSTS = ("redis.csi-fleet.svc:6379", "redis:6379")


@dataclass(slots=True)
class Pod:
    """One pod whose csi-fleet container runs here."""

    name: str
    namespace: str
    container: JsonObject
    process: Process
    port: int
    mounts: dict[str, Path] = field(default_factory=dict)
    launch: Callable[[], Process] | None = None
    restarts: int = 0

    def local(self, text: str) -> str:
        """Replace mount paths of the pod in a text by folders of this machine."""
        paths = "|".join(map(re.escape, sorted(self.mounts, key=len, reverse=True)))
        return re.sub(
            rf"(?<![\w.-])({paths})(?![\w.-])", lambda found: str(self.mounts[found[1]]), text
        )

    def probe(self, kind: str) -> bool:
        """Return True if a probe of the manifest succeeds; a container without the probe is no
        error."""
        given = self.container.get(kind)
        if given is None:
            return True
        if "exec" in given:
            command = [self.local(one) for one in given["exec"]["command"]]
            return subprocess.run(command, check=False, capture_output=True).returncode == 0
        ports = {one["name"] for one in self.container["ports"]}
        assert given["httpGet"]["port"] in ports, f"{kind} names no port of the container"
        url = f"http://127.0.0.1:{self.port}{given['httpGet']['path']}"
        try:
            return requests.get(url, timeout=5).ok
        except requests.ConnectionError:
            return False


class Kubelet:
    """Starts pods of one rendered overlay; a context manager that stops them."""

    def __init__(
        self,
        plane: ControlPlane,
        api: KubeApi,
        redis: SecureRedis,
        directory: Path,
        objects: list[JsonObject],
    ) -> None:
        """`directory` must be short: sockets are created below it, and their paths have at most
        107 bytes."""
        self.pods: list[Pod] = []
        self._plane, self._api, self._redis = plane, api, redis
        self._directory, self._objects = directory, objects
        # Secrets and ConfigMaps by kind and name: those of the overlay and those of
        # make-secrets.sh.
        self._contents: dict[tuple[str, str], dict[str, bytes]] = {}
        self._mounted: dict[tuple[str, str], list[Path]] = defaultdict(list)
        self.apply_secrets()
        self._take(objects)

    def apply_secrets(self) -> None:
        """Update the Secrets with what make-secrets.sh prints now, also for running pods."""
        made = subprocess.run(
            ["sh", ROOT / "k8s/make-secrets.sh", self._redis.secrets, "csi-fleet", *DRIVERS],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        self._take(yaml.safe_load_all(made))

    def _take(self, objects: Iterable[JsonObject]) -> None:
        for item in objects:
            if item["kind"] in {"Secret", "ConfigMap"}:
                meta = item["metadata"]
                name = meta["name"]
                if meta["namespace"] != "csi-fleet":
                    name = f"{meta['namespace']}/{name}"
                self.provide(item["kind"], name, contents(item))

    def provide(self, kind: str, name: str, files: dict[str, bytes]) -> None:
        """Set the content of a Secret or ConfigMap; mounted files change too."""
        self._contents[kind, name] = files
        for folder in self._mounted[kind, name]:
            for key, content in files.items():
                draft = folder / f".{key}"
                draft.write_bytes(content)
                draft.replace(folder / key)

    def restart_ended(self) -> None:
        """Start each container again that has ended."""
        for pod in self.pods:
            if not pod.process.is_running() and pod.launch is not None:
                pod.process = pod.launch()
                pod.restarts += 1

    def file(self, kind: str, name: str, key: str) -> bytes:
        """Return one entry of a Secret or ConfigMap."""
        return self._contents[kind, name][key]

    def install(self) -> None:
        """Apply every object of the overlay, namespaces first."""
        order = sorted(self._objects, key=lambda one: one["kind"] not in CLUSTER_KINDS)
        for item in sorted(order, key=lambda one: one["kind"] != "Namespace"):
            self._api.apply(item)

    def start(
        self, kind: str, namespace: str, name: str, *, node: str = "", mounts: Any = None
    ) -> Pod:
        """Create the pod, start its csi-fleet container and wait until its probes succeed.

        Args:
            kind: Deployment or DaemonSet.
            namespace: of the workload.
            name: of the workload.
            node: `spec.nodeName` of the pod.
            mounts: folders in place of volumes, by volume name.
        """
        workload = next(
            one for one in self._objects
            if one["kind"] == kind and one["metadata"]["name"] == name
            and one["metadata"]["namespace"] == namespace
        )  # fmt: skip
        spec = copy.deepcopy(pod_spec(workload))
        assert spec is not None
        container = next(
            one for one in spec["containers"] if one["image"].partition(":")[0] == "csi-fleet"
        )
        pod_name = self._pod_object(workload, node)
        folder = self._directory / uuid.uuid4().hex[:6]
        volumes = {
            one["name"]: (mounts or {}).get(one["name"]) or self._volume(one, folder, namespace)
            for one in spec["volumes"]
        }
        paths = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
        pod = Pod(pod_name, namespace, container, Process("", 0, folder), free_port(), paths)
        fields = {"metadata.namespace": namespace, "metadata.name": pod_name, "spec.nodeName": node}
        # This replaces the namespace file that is mounted with an account's token.
        env = {"POD_NAMESPACE": namespace, "CSI_FLEET_STATE_DIR": str(paths["/run/csi-fleet"])}
        for entry in container["env"]:
            value = entry.get("value") or fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
            env[entry["name"]] = self._reachable(pod.local(value))
        pod.launch = partial(
            start_process,
            pod_name,
            [*program(), *self._arguments(pod, spec)],
            log=self._directory / f"{pod_name}.log",
            env=environment(**env),
            cwd=ROOT,
        )
        pod.process = pod.launch()
        self.pods.append(pod)
        wait_until(lambda: self._is_up(pod), READY_SECONDS, f"{pod_name} is up", fatal=RuntimeError)
        return pod

    def log_text(self) -> str:
        """Return what all containers printed."""
        return "".join(one.read_text(errors="replace") for one in self._directory.glob("*.log"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self.pods:
            pod.process.stop(20)

    def _is_up(self, pod: Pod) -> bool:
        if not pod.process.is_running():
            raise RuntimeError(f"{pod.name} ended:\n{pod.process.log_tail(30)}")
        return all(map(pod.probe, ("startupProbe", "livenessProbe", "readinessProbe")))

    def _arguments(self, pod: Pod, spec: JsonObject) -> list[str]:
        changed = {
            "--http-endpoint": f"127.0.0.1:{pod.port}",
            "--flower-address": "127.0.0.1",
        }
        arguments = []
        for one in pod.container["args"]:
            flag = one.partition("=")[0]
            arguments.append(f"{flag}={changed[flag]}" if flag in changed else pod.local(one))
            if flag == "--flower-address":
                arguments.append(f"--flower-port={pod.port}")
        if has_token(pod.container):
            account = self._plane.service_account_kubeconfig(
                pod.namespace, spec["serviceAccountName"]
            )
            arguments.append(f"--kubeconfig={account}")
        return arguments

    def _reachable(self, text: str) -> str:
        for host in REDIS_HOSTS:
            text = text.replace(f"//{host}/", f"//127.0.0.1:{self._redis.port}/")
        return text

    def _volume(self, volume: JsonObject, folder: Path, namespace: str) -> Path:
        path: Path = folder / volume["name"]
        path.mkdir(parents=True, mode=0o700)
        for kind, name in sources_of(volume):
            own = (kind, f"{namespace}/{name}")
            found = own if own in self._contents else (kind, name)
            self._mounted[found].append(path)
            # A missing volume is optional, or created by Kubernetes.
            for key, content in self._contents.get(found, {}).items():
                (path / key).write_bytes(content)
        return path

    def _pod_object(self, workload: JsonObject, node: str) -> str:
        """Create the pod as its controllers would, with a ReplicaSet if there is one; return its
        name."""
        meta = workload["metadata"]
        owner = self._api.get(f"{self._api._collection(workload)}/{meta['name']}")
        name, labels = f"{meta['name']}-{uuid.uuid4().hex[:5]}", pod_labels(workload)
        if workload["kind"] == "Deployment":
            owner = self._api.create(
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "metadata": {"name": name, "namespace": meta["namespace"],
                                 "ownerReferences": [reference(owner)]},
                    "spec": {"replicas": 0, "selector": workload["spec"]["selector"],
                             "template": workload["spec"]["template"]},
                }
            )  # fmt: skip
        spec = {**copy.deepcopy(pod_spec(workload) or {}), **({"nodeName": node} if node else {})}
        self._api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": meta["namespace"], "labels": labels,
                             "ownerReferences": [reference(owner)]},
                "spec": spec,
            }
        )  # fmt: skip
        return name


def sources_of(volume: JsonObject) -> list[tuple[str, str]]:
    """Return kind and name of the Secrets and ConfigMaps that a volume contains."""
    found = [("Secret", volume["secret"]["secretName"])] if "secret" in volume else []
    maps = [volume, *volume.get("projected", {}).get("sources", ())]
    return found + [("ConfigMap", one["configMap"]["name"]) for one in maps if "configMap" in one]


def has_token(container: JsonObject) -> bool:
    """Return True if the account's token is mounted into the container."""
    return any(one["mountPath"] == TOKEN_FOLDER for one in container["volumeMounts"])


def pod_labels(workload: JsonObject) -> dict[str, str]:
    """Return the labels of a workload's pods."""
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def reference(owner: JsonObject) -> JsonObject:
    """Return the owner reference of a controller."""
    meta = owner["metadata"]
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"],
            "uid": meta["uid"], "controller": True}  # fmt: skip


def contents(item: JsonObject) -> dict[str, bytes]:
    """Return the files of a Secret or ConfigMap by name."""
    plain = {} if item["kind"] == "Secret" else item.get("data", {})
    encoded = item.get("data", {}) if item["kind"] == "Secret" else item.get("binaryData", {})
    return {
        **{key: text.encode() for key, text in plain.items()},
        **{key: base64.b64decode(text) for key, text in encoded.items()},
    }
