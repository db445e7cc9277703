"""The small part of the Kubernetes API that the runner needs, with watches kept in memory."""

import json
import threading
import time
from pathlib import Path

import requests
import urllib3
import yaml

urllib3.disable_warnings()
PATHS = {  # kind -> (api prefix, plural, namespaced)
    "Namespace": ("api/v1", "namespaces", False),
    "Secret": ("api/v1", "secrets", True),
    "Node": ("api/v1", "nodes", False),
    "PersistentVolume": ("api/v1", "persistentvolumes", False),
    "Pod": ("api/v1", "pods", True),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims", True),
    "Event": ("api/v1", "events", True),
    "StorageClass": ("apis/storage.k8s.io/v1", "storageclasses", False),
    "CSINode": ("apis/storage.k8s.io/v1", "csinodes", False),
    "VolumeAttachment": ("apis/storage.k8s.io/v1", "volumeattachments", False),
    "VolumeAttributesClass": ("apis/storage.k8s.io/v1", "volumeattributesclasses", False),
    "CSIStorageCapacity": ("apis/storage.k8s.io/v1", "csistoragecapacities", True),
    "VolumeSnapshot": ("apis/snapshot.storage.k8s.io/v1", "volumesnapshots", True),
    "VolumeSnapshotContent": ("apis/snapshot.storage.k8s.io/v1", "volumesnapshotcontents", False),
    "VolumeSnapshotClass": ("apis/snapshot.storage.k8s.io/v1", "volumesnapshotclasses", False),
    "VolumeGroupSnapshot": ("apis/groupsnapshot.storage.k8s.io/v1", "volumegroupsnapshots", True),
    "VolumeGroupSnapshotContent": (
        "apis/groupsnapshot.storage.k8s.io/v1",
        "volumegroupsnapshotcontents",
        False,
    ),
    "VolumeGroupSnapshotClass": (
        "apis/groupsnapshot.storage.k8s.io/v1",
        "volumegroupsnapshotclasses",
        False,
    ),
    "Lease": ("apis/coordination.k8s.io/v1", "leases", True),
    "CSIDriver": ("apis/storage.k8s.io/v1", "csidrivers", False),
    "VolumePopulator": ("apis/populator.storage.k8s.io/v1beta1", "volumepopulators", False),
    "ReferenceGrant": ("apis/gateway.networking.k8s.io/v1beta1", "referencegrants", True),
}
WATCHED = [
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Event",
    "CSIStorageCapacity",
    "VolumeSnapshot",
    "VolumeSnapshotContent",
    "VolumeSnapshotClass",
    "VolumeGroupSnapshot",
    "VolumeGroupSnapshotContent",
    "VolumeAttachment",
    "Lease",
]


class Kube:
    def __init__(self, kubeconfig):
        config = yaml.safe_load(Path(kubeconfig).read_text())
        self.server = config["clusters"][0]["cluster"]["server"]
        self.headers = {"Authorization": "Bearer " + config["users"][0]["user"]["token"]}
        self.local = threading.local()
        self.lock = threading.Lock()
        self.history = {kind: [] for kind in WATCHED}  # (sequence, type, object)

    def session(self):
        if not hasattr(self.local, "s"):
            self.local.s = requests.Session()
            self.local.s.headers.update(self.headers)
            self.local.s.verify = False
            self.local.s.trust_env = False  # otherwise REQUESTS_CA_BUNDLE overrides verify
        return self.local.s

    def url(self, kind, namespace=None, name=None, sub=None):
        prefix, plural, namespaced = PATHS[kind]
        parts = (
            [self.server, prefix]
            + (["namespaces", namespace] if namespaced and namespace else [])
            + [plural]
        )
        return "/".join(parts + ([name] if name else []) + ([sub] if sub else []))

    def call(
        self, verb, url, body=None, ctype="application/json", ok=(200, 201, 202), missing_ok=False
    ):
        for attempt in range(3):
            answer = self.session().request(
                verb,
                url,
                data=json.dumps(body) if body is not None else None,
                headers={"Content-Type": ctype},
                timeout=30,
            )
            if answer.status_code in (429, 500, 503) and attempt < 2:
                time.sleep(0.5)
                continue
            break
        if missing_ok and answer.status_code == 404:
            return None
        if answer.status_code not in ok:
            raise RuntimeError(f"{verb} {url}: {answer.status_code} {answer.text[:400]}")
        return answer.json()

    def get(self, kind, namespace, name):
        return self.call("GET", self.url(kind, namespace, name), missing_ok=True)

    def list(self, kind, namespace=None):
        return self.call("GET", self.url(kind, namespace), missing_ok=True) or {"items": []}

    def create(self, obj):
        meta = obj["metadata"]
        made = self.call("POST", self.url(obj["kind"], meta.get("namespace")), obj)
        if "status" in obj and obj["kind"] != "Namespace":
            self.patch(
                obj["kind"],
                meta.get("namespace"),
                meta["name"],
                {"status": obj["status"]},
                sub="status",
            )
        return made

    def patch(self, kind, namespace, name, body, sub=None, missing_ok=False):
        ctype = (
            "application/json-patch+json"
            if isinstance(body, list)
            else "application/merge-patch+json"
        )
        return self.call(
            "PATCH", self.url(kind, namespace, name, sub), body, ctype, missing_ok=missing_ok
        )

    def replace_status(self, kind, namespace, name, status):
        return self.call(
            "PUT",
            self.url(kind, namespace, name, "status"),
            {**self.get(kind, namespace, name), "status": status},
        )

    def delete(self, kind, namespace, name):
        return self.call(
            "DELETE",
            self.url(kind, namespace, name),
            {"propagationPolicy": "Background", "gracePeriodSeconds": 0},
            missing_ok=True,
        )

    # -- watches
    def start_watches(self):
        for kind in WATCHED:
            got = self.list(kind)
            version = got.get("metadata", {}).get("resourceVersion", "0")
            threading.Thread(target=self._watch, args=(kind, version), daemon=True).start()

    def _watch(self, kind, version):
        while True:
            try:
                s = requests.Session()
                s.trust_env = False
                answer = s.get(
                    self.url(kind),
                    headers=self.headers,
                    verify=False,
                    stream=True,
                    timeout=(10, 3600),
                    params={
                        "watch": "1",
                        "resourceVersion": version,
                        "allowWatchBookmarks": "true",
                    },
                )
                for line in answer.iter_lines(chunk_size=None):
                    if not line:
                        continue
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        version = self.list(kind)["metadata"]["resourceVersion"]
                        break
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        with self.lock:
                            self.history[kind].append((event["type"], event["object"]))
            except Exception:  # noqa: BLE001 - watched again, whatever it was
                time.sleep(0.3)

    def seen(self, kind, start=0):
        with self.lock:
            return self.history[kind][start:]

    def mark(self):
        with self.lock:
            return {kind: len(items) for kind, items in self.history.items()}
