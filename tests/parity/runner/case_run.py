"""Runs one case: creates objects, starts components, acts, waits and records the results."""

import json
import re
import shutil
import signal
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path

from csi_driver import RecordingDriver
from kube import PATHS
from process import Component
from recorder import record

SYSTEM_WIDE = ("snapshot-controller", "data-source-validator")
NAME_LOCKS, NAME_GUARD = {}, threading.Lock()
CLUSTER_KINDS = (
    "VolumeGroupSnapshotContent",
    "VolumeSnapshotContent",
    "VolumeAttachment",
    "PersistentVolume",
)
# These are deleted before their finalizers are removed, so that no controller adds them again.
DELETE_FIRST = (
    *CLUSTER_KINDS,
    "PersistentVolumeClaim",
    "VolumeSnapshot",
    "VolumeGroupSnapshot",
)
# A retry that is due when a wait ends comes just before that end in the Go sidecar, whose queue is
# in memory. csi-fleet takes a few ms longer.
SLACK = 0.1


def lock_for(name):
    with NAME_GUARD:
        return NAME_LOCKS.setdefault(name, threading.RLock())


def components(case):
    """Return the main component, then the others of the case."""
    first = {
        "component": case.get("component", "provisioner"),
        "flags": case.get("flags", case.get("provisioner_flags", {})),
        "env": case.get("env", {}),
    }
    return [first, *case.get("with", [])]


def alone(case):
    """Return True if the case must run alone.

    It has a component without a driver, which serves all namespaces: it handles snapshots, or
    claims with a source of a custom kind.
    """
    return any(c["component"] in SYSTEM_WIDE for c in components(case))


def is_for_all(case):
    """Return True if a component without a driver would handle the objects of the case."""
    text = json.dumps(case["objects_before"] + case.get("actions", []))
    return "snapshot.storage.k8s.io" in text or "dataSourceRef" in text


class CaseRun:
    def __init__(self, kube, case, commands, kubeconfig, logs, beside=None, up=()):
        self.kube, self.case, self.commands, self.kubeconfig, self.logs = (
            kube,
            case,
            commands,
            kubeconfig,
            logs,
        )
        self.driver_name = case.get("driver", {}).get("name", "none-" + case["id"])
        self.given = case["objects_before"] + [
            a["create"] for a in case.get("actions", []) if "create" in a
        ]
        self.named = {(o["kind"], o["metadata"]["name"]) for o in self.given}
        self.namespaces = [
            o["metadata"]["name"] for o in case["objects_before"] if o["kind"] == "Namespace"
        ]
        self.driver, self.parts, self.beside, self.up = None, [], beside, up
        self.work = tempfile.mkdtemp(prefix="golden-")
        self.marks = kube.mark()

    @property
    def main(self):
        return self.parts[0]

    # -- objects
    def substitute(self, obj):
        """Replace ${uid:Kind/namespace/name} and ${pv:namespace/claim} by their values."""

        def uid(match):
            kind, namespace, name = match.group(1).split("/")
            return self.kube.get(kind, namespace or None, name)["metadata"]["uid"]

        text = re.sub(r"\$\{uid:([^}]+)\}", uid, json.dumps(obj))
        text = re.sub(
            r"\$\{pv:([^}]+)\}",
            lambda m: self.kube.get("PersistentVolumeClaim", *m.group(1).split("/"))["spec"][
                "volumeName"
            ],
            text,
        )
        return json.loads(text)

    def create(self, obj):
        self.kube.create(self.substitute(obj))
        if obj["kind"] in ("StorageClass", "VolumeAttributesClass"):
            # The cluster's own PV controller must see the class first; otherwise it retries after
            # 15 s.
            time.sleep(0.15)

    def remove(self, kind, namespace, name):
        obj = self.kube.get(kind, namespace, name)
        if obj is None:
            return
        if kind in DELETE_FIRST:
            self.kube.delete(kind, namespace, name)
            self.kube.patch(
                kind, namespace, name, {"metadata": {"finalizers": None}}, missing_ok=True
            )
        elif obj["metadata"].get("finalizers") and kind != "Namespace":
            self.kube.patch(
                kind, namespace, name, {"metadata": {"finalizers": None}}, missing_ok=True
            )
        self.kube.delete(kind, namespace, name)

    def clean(self, patient=True):
        for kind in ("VolumeGroupSnapshot", "PersistentVolumeClaim", "VolumeSnapshot"):
            for namespace in self.namespaces:
                for item in self.kube.list(kind, namespace)["items"]:
                    self.remove(kind, namespace, item["metadata"]["name"])
        for kind in CLUSTER_KINDS:
            for item in self.kube.list(kind)["items"]:
                if self.owns(kind, item):
                    self.remove(kind, None, item["metadata"]["name"])
        for obj in reversed(self.given):
            self.remove(obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"])
        for namespace in self.namespaces:
            for item in self.kube.list("CSIStorageCapacity", namespace)["items"]:
                self.remove("CSIStorageCapacity", namespace, item["metadata"]["name"])
        end = time.time() + 40
        while (
            patient
            and time.time() < end
            and any(self.kube.get("Namespace", None, n) for n in self.namespaces)
        ):
            time.sleep(0.3)

    def owns(self, kind, obj):
        """Return True if an object is in the case's namespaces, named in it, or its driver's."""
        if PATHS[kind][2]:
            return obj["metadata"].get("namespace") in self.namespaces
        spec = obj.get("spec", {})
        ref = (
            spec.get("claimRef")
            or spec.get("volumeSnapshotRef")
            or spec.get("volumeGroupSnapshotRef")
            or {}
        )
        return (
            (kind, obj["metadata"]["name"]) in self.named
            or ref.get("namespace") in self.namespaces
            or self.driver_name
            in (spec.get("attacher"), spec.get("csi", {}).get("driver"), spec.get("driver"))
        )

    # -- what was seen
    def seen(self, kind):
        events = self.kube.seen(kind, self.marks[kind])
        if kind == "Event":
            ours = {(k, o["metadata"]["name"]) for k in CLUSTER_KINDS for _, o in self.seen(k)}
            return [
                (t, o)
                for t, o in events
                if t != "DELETED"
                and o.get("source", {}).get("component") != "persistentvolume-controller"
                and (
                    o["involvedObject"].get("namespace") in self.namespaces
                    or (o["involvedObject"]["kind"], o["involvedObject"].get("name")) in ours
                )
            ]
        return [(t, o) for t, o in events if self.owns(kind, o)]

    def now(self, kind):
        state = {}
        for t, obj in self.seen(kind):
            key = (obj["metadata"].get("namespace"), obj["metadata"]["name"])
            if t == "DELETED":
                state.pop(key, None)
            else:
                state[key] = obj
        return state

    def events(self):
        latest = {}
        for _, e in self.seen("Event"):
            latest[(e["metadata"]["namespace"], e["metadata"]["name"])] = e
        return list(latest.values())

    # -- conditions
    def holds(self, want):
        if "claim" in want:
            namespace, name = want["claim"].split("/")
            pvc = self.now("PersistentVolumeClaim").get((namespace, name))
            if want.get("gone"):
                return pvc is None
            if pvc is None:
                return False
            if want.get("deleting"):
                return "deletionTimestamp" in pvc["metadata"]
            if want.get("no_annotation"):
                return want["no_annotation"] not in pvc["metadata"].get("annotations", {})
            if want.get("annotation"):
                return want["annotation"] in pvc["metadata"].get("annotations", {})
            if want.get("finalizer"):
                return want["finalizer"] in pvc["metadata"].get("finalizers", [])
            return pvc.get("status", {}).get("phase") == want["phase"]
        if "snapshot_gone" in want:
            return tuple(want["snapshot_gone"].split("/")) not in self.now("VolumeSnapshot")
        if "event" in want:
            total = 0
            for e in self.events():
                if e["reason"] == want["event"] and want.get("contains", "") in e["message"]:
                    total += e.get("count") or 1
            return total >= want.get("min", 1)
        if "csi" in want:
            return self.driver.count(want["csi"], want.get("code")) >= want.get("min", 1)
        if "volumes" in want:
            return len(self.now("PersistentVolume")) == want["volumes"]
        if "volumes_seen" in want:
            return (
                len({o["metadata"]["name"] for _, o in self.seen("PersistentVolume")})
                >= want["volumes_seen"]
            )
        if "volume_phase" in want:
            return any(
                o.get("status", {}).get("phase") == want["volume_phase"]
                for o in self.now("PersistentVolume").values()
            )
        if "volume_finalizer" in want:
            return all(
                (want["volume_finalizer"] in o["metadata"].get("finalizers", [])) == want["present"]
                for o in self.now("PersistentVolume").values()
            )
        if "capacities" in want:
            return len(self.now("CSIStorageCapacity")) == want["capacities"]
        if "capacity_value" in want:
            return all(
                o.get("capacity") == want["capacity_value"]
                for o in self.now("CSIStorageCapacity").values()
            )
        if "object" in want:
            return self.object_holds(want)
        if "exited" in want:
            return self.main.exit_code() is not None
        if "ready" in want:
            return "ControllerGetCapabilities" in self.driver.handshake
        raise ValueError(f"unknown condition {want}")

    def object_holds(self, want):
        try:
            kind, namespace, name = self.substitute(want["object"]).split("/")
        except (TypeError, KeyError):
            return False  # names an object that does not exist yet
        if kind in self.marks:
            value = self.now(kind).get((namespace or None, name))
        else:
            value = self.kube.get(kind, namespace or None, name)
        if "gone" in want or value is None:
            return (value is None) == want.get("gone", False)
        path = want.get("path", [])
        for part in path.split(".") if isinstance(path, str) else path:
            if isinstance(value, list):
                value = value[int(part)] if int(part) < len(value) else None
            else:
                value = value.get(part) if isinstance(value, dict) else None
        if "equals" in want:
            return value == want["equals"]
        if "contains" in want:
            return value is not None and want["contains"] in value
        return (value is None) == want.get("absent", False)

    def wait(self, want, problems):
        conditions = list(want.get("for", []))
        end = time.time() + want.get("timeout", 20)
        while not all(self.holds(c) for c in conditions):
            if time.time() > end:
                problems.append(
                    "not reached: " + json.dumps([c for c in conditions if not self.holds(c)])
                )
                break
            time.sleep(0.05)
        if seconds := want.get("seconds", 0):
            time.sleep(seconds + SLACK)

    # -- the case
    def start(self):
        values = {
            "kubeconfig": self.kubeconfig,
            "csi_address": str(Path(self.work, "csi.sock")),
            "case": self.case["id"],
            "work": self.work,
        }
        if "driver" in self.case:
            self.driver = RecordingDriver(self.case["driver"], values["csi_address"])
        if self.beside:
            self.beside.start(self, components(self.case))
        for i, c in enumerate(components(self.case)):
            log = str(
                Path(self.logs, self.case["id"] + (f".{c['component']}" if i else "") + ".log")
            )
            self.parts.append(
                Component(
                    c["component"], c.get("flags", {}), c.get("env", {}), values, self.commands, log
                )
            )
            self.parts[-1].start()
        for part in self.parts:
            part.wait_up(self.up)

    def stop(self):
        for part in self.parts:
            part.close()
        if self.beside:
            self.beside.stop()
        if self.driver:
            self.driver.stop()

    def part(self, name):
        """Return the named part. `true` means the main component."""
        return next((p for p in self.parts if p.name == name), self.main)

    def act(self, action, problems):
        def named(text):
            kind, namespace, name = self.substitute(text).split("/")
            return kind, namespace or None, name

        if "create" in action:
            self.create(action["create"])
        elif "delete" in action:
            self.kube.delete(*named(action["delete"]))
        elif "patch" in action:
            self.kube.patch(
                *named(action["patch"]), self.substitute(action["body"]), sub=action.get("sub")
            )
        elif "replace_status" in action:
            self.kube.replace_status(
                *named(action["replace_status"]), self.substitute(action["status"])
            )
        elif "delete_all" in action:
            kind, namespace = action["delete_all"].split("/")
            for item in self.kube.list(kind, namespace)["items"]:
                self.kube.delete(kind, namespace, item["metadata"]["name"])
        elif "wait" in action:
            self.wait(action["wait"], problems)
        elif "respond" in action:
            self.driver.respond(action["respond"])
            if self.beside:
                self.beside.respond(action["respond"])
        else:
            self.control(action)

    def control(self, action):
        """Stop, start, restart (SIGTERM) or kill (SIGKILL, then start) a component."""
        verb, name = next(iter(action.items()))
        if verb not in ("stop", "start", "restart", "kill"):
            raise ValueError(f"unknown action {action}")
        part = self.part(name)
        if verb != "start":
            part.stop(signal.SIGKILL if verb == "kill" else signal.SIGTERM)
        if verb != "stop":
            if self.driver:
                self.driver.handshake.clear()  # `ready` is about the new process
            part.start()
            part.wait_up(self.up)

    def run(self):
        problems = []
        with (
            lock_for("driver:" + self.driver_name),
            lock_for("alone" if alone(self.case) else "case:" + self.case["id"]),
        ):
            try:
                self.clean()
                self.marks = self.kube.mark()
                for obj in self.case["objects_before"]:
                    self.create(obj)
                self.wait(self.case.get("wait_before", {}), problems)
                self.started_at = int(self.kube.list("CSIDriver")["metadata"]["resourceVersion"])
                self.start()
                for action in self.case.get("actions", []):
                    with self.beside.ahead(action) if self.beside else nullcontext():
                        self.act(action, problems)
                self.wait(self.case.get("wait", {}), problems)
                time.sleep(self.case.get("settle", 0.7))
                recorded = record(self, problems)
                if self.beside:
                    recorded["shadow"] = self.beside.told()
            finally:
                self.stop()
                self.clean(patient=False)
                shutil.rmtree(self.work, ignore_errors=True)
        return recorded
