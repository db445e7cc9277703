"""Records what a case leaves behind."""

import json
import re
import socket
from hashlib import sha256

from normalize import Normalizer, strip_meta


def by_text(item):
    return json.dumps(item, sort_keys=True)


def full_name(obj):
    return obj["metadata"].get("namespace", "") + "/" + obj["metadata"]["name"]


def record(run, problems):
    norm = Normalizer(run.case, socket.gethostname())
    for _, obj in run.seen(
        "VolumeGroupSnapshotContent"
    ):  # members of a group are named after its UID and their volume
        group = obj["spec"].get("volumeGroupSnapshotRef", {})
        for handle in obj["spec"].get("source", {}).get("volumeHandles", []):
            norm.pairs.append(
                (
                    sha256((group.get("uid", "") + handle).encode()).hexdigest(),
                    f"<SHA256:{group['name']}+{handle}>",
                )
            )
    kinds = [
        k
        for k in run.case.get("record", [])
        if k not in ("PersistentVolumeClaim", "VolumeSnapshot")
    ]
    for kind in ["PersistentVolumeClaim", "VolumeSnapshot", *sorted(kinds)]:
        for _, obj in run.seen(kind):
            label = obj["metadata"]["name"]
            norm.learn(obj["metadata"]["uid"], f"{kind}/{label}" if kind in kinds else label)
    out = {"csi_calls": calls(run, norm)}
    if "record" in run.case:
        out["objects"] = objects(run, norm)
        out["events"] = events(run, norm)
    else:
        out.update(provisioner_parts(run, norm))
    if run.main.exit_code() is not None and not run.main.ended:
        out["exit_code"] = run.main.exit_code()
    if problems:
        out["problems"] = problems
    return out


def calls(run, norm):
    found = []
    for call in norm.value(run.driver.snapshot()) if run.driver else []:
        if found and {k: found[-1][k] for k in call} == call:
            found[-1]["count"] += 1
        else:
            found.append({**call, "count": 1})
    return found


def events(run, norm):
    found = {}
    for e in run.events():
        about = e["involvedObject"]
        if about["kind"] == "Lease":  # events about leaders name hosts
            continue
        what = norm.value(
            {
                "object": f"{about['kind']}/{about.get('namespace', '')}/{about['name']}",
                "type": e["type"],
                "reason": e["reason"],
                "message": e["message"],
            }
        )
        what["component"] = norm.component(
            e.get("source", {}).get("component") or e.get("reportingComponent", "")
        )
        found[by_text(what)] = found.get(by_text(what), 0) + (e.get("count") or 1)
    return sorted(({**json.loads(k), "count": n} for k, n in found.items()), key=by_text)


def objects(run, norm):
    """Return each object's distinct states in order.

    `record_from: start` drops the states from before the start.
    """
    found, from_start = {}, run.case.get("record_from") == "start"
    for kind in run.case["record"]:
        for t, obj in run.seen(kind):
            name = norm.text(f"{kind}/{full_name(obj)}")
            if t == "DELETED" and name not in found:  # deleted before the case began
                continue
            states = found.setdefault(name, [])
            if from_start and int(obj["metadata"]["resourceVersion"]) <= run.started_at:
                states.clear()
            state = "gone" if t == "DELETED" else norm.state(obj)
            if not states or states[-1] != state:
                states.append(state)
    return found


def provisioner_parts(run, norm):
    created, finals = [], {}
    for t, obj in run.seen("PersistentVolume"):
        name = obj["metadata"]["name"]
        if t == "ADDED":
            created.append(norm.volume(obj))
        finals[name] = (
            "gone"
            if t == "DELETED"
            else {
                "phase": obj.get("status", {}).get("phase"),
                "deleting": "deletionTimestamp" in obj["metadata"],
                "finalizers": sorted(obj["metadata"].get("finalizers", [])),
            }
        )
    claims = {}
    for t, obj in run.seen("PersistentVolumeClaim"):
        meta = strip_meta(obj)
        claims[full_name(obj)] = (
            "gone"
            if t == "DELETED"
            else {
                "annotations": meta.get("annotations", {}),
                "finalizers": meta.get("finalizers", []),
                "phase": obj.get("status", {}).get("phase"),
                "volumeName": obj["spec"].get("volumeName", ""),
                "deleting": "deletionTimestamp" in meta,
            }
        )
    snapshots = {}
    for t, obj in run.seen("VolumeSnapshot"):
        steps = snapshots.setdefault(full_name(obj), [])
        step = "gone" if t == "DELETED" else sorted(obj["metadata"].get("finalizers", []))
        if not steps or steps[-1] != step:
            steps.append(step)
    capacities = []
    for obj in run.now("CSIStorageCapacity").values():
        meta = strip_meta(obj)
        for ref in meta.get("ownerReferences", []):
            ref["uid"] = "<OWNER_UID>"
        meta["name"] = (
            re.sub(r"-[a-z0-9]{5}$", "-<RANDOM>", meta["name"])
            if meta.get("generateName")
            else meta["name"]
        )
        capacities.append(
            norm.value(
                {
                    "metadata": meta,
                    **{k: v for k, v in obj.items() if k not in ("metadata", "kind", "apiVersion")},
                }
            )
        )
    return {
        "pv": sorted(created, key=by_text),
        "pv_final": norm.value(finals),
        "pvc": norm.value(claims),
        "snapshots": norm.value(snapshots),
        "events": events(run, norm),
        "csistoragecapacities": sorted(capacities, key=by_text),
    }
