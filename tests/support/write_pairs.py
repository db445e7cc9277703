"""Generates every write of a worker's account that could harm a foreign object, from the object
itself.

`writes_of` lists the writes: all finalizers, owners, annotations, labels, fields of spec and
status, and the deletion. `changes` returns the effect of a write as a set, so that the effect of
two writes can be compared with the possible effect of one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.support.kube_api import JsonObject
from workers import constants

FINALIZERS: Final = sorted(
    {
        *(value for name, value in vars(constants).items() if name.startswith("FINALIZER_")),
        "example.org/x",
        "kubernetes.io/pv-protection",
        "kubernetes.io/pvc-protection",
        "external-attacher/csi-example-org",
    }
)
ANNOTATIONS: Final = sorted(
    value for name, value in vars(constants).items() if name.startswith("ANN_")
)
GROUPS: Final = "groupsnapshot.storage.k8s.io/v1"
OWNERS: Final = [
    {"apiVersion": GROUPS, "kind": "VolumeGroupSnapshot", "name": "gone", "uid": "gone"},
    {"apiVersion": "example.org/v1", "kind": "VolumeGroupSnapshot", "name": "gone", "uid": "gone"},
    {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"},
]
OURS: Final = "csi.example.org"
A_TIME: Final = "2026-01-01T00:00:00Z"
# Fields that a foreign object does not have yet, and that some controller writes.
SPEC: Final[dict[str, JsonObject]] = {
    "persistentvolumes": {"volumeAttributesClassName": "x", "mountOptions": ["suid"]},
    "persistentvolumeclaims": {"volumeName": "x", "volumeAttributesClassName": "x"},
    "volumesnapshots": {"volumeSnapshotClassName": "x"},
    "volumegroupsnapshots": {"volumeGroupSnapshotClassName": "x"},
    "volumesnapshotcontents": {"volumeSnapshotClassName": "x"},
    "volumegroupsnapshotcontents": {"volumeGroupSnapshotClassName": "x"},
}
STATUS: Final[dict[str, JsonObject]] = {
    "persistentvolumes": {"phase": "Failed", "reason": "x"},
    "persistentvolumeclaims": {
        "phase": "Lost",
        "capacity": {"storage": "9Gi"},
        "conditions": [{"type": "Resizing", "status": "True"}],
        "allocatedResources": {"storage": "9Gi"},
        "currentVolumeAttributesClassName": "x",
    },
    "volumeattachments": {"attached": True, "attachError": {"message": "x"}},
    "volumesnapshots": {
        "boundVolumeSnapshotContentName": "x",
        "volumeGroupSnapshotName": "x",
        "creationTime": A_TIME,
        "readyToUse": True,
        "restoreSize": "1Gi",
        "error": {"message": "x", "time": A_TIME},
    },
    "volumegroupsnapshots": {
        "boundVolumeGroupSnapshotContentName": "x",
        "creationTime": A_TIME,
        "readyToUse": True,
        "error": {"message": "x", "time": A_TIME},
    },
    "volumesnapshotcontents": {
        "snapshotHandle": "x",
        "volumeGroupSnapshotHandle": "x",
        "readyToUse": True,
        "restoreSize": 1,
    },
    "volumegroupsnapshotcontents": {"volumeGroupSnapshotHandle": "x", "readyToUse": True},
}


@dataclass(frozen=True, slots=True)
class Write:
    """A deletion, or a change of the object in its current state; None if it changes nothing."""

    name: str
    change: Callable[[JsonObject], JsonObject | None] | None
    place: str = ""


def writes_of(resource: str, item: JsonObject) -> list[Write]:
    """Return all writes to try on an object of that resource; the deletion is the last."""
    found: list[Write] = []
    for name in FINALIZERS:
        found += [Write(f"add finalizer {name}", _finalizer(name, add=True))]
        found += [Write(f"remove finalizer {name}", _finalizer(name, add=False))]
    for owner in OWNERS:
        found.append(Write(f"add owner {owner['apiVersion']} {owner['kind']}", _owner(owner)))
    found.append(Write("remove owners", _field(["metadata", "ownerReferences"], None)))
    found.append(Write("add a label", _field(["metadata", "labels", "a"], "b")))
    for name in ANNOTATIONS:
        found.append(Write(f"annotate {name}", _field(["metadata", "annotations", name], OURS)))
        found.append(Write(f"unannotate {name}", _field(["metadata", "annotations", name], None)))
    for path, value in _leaves(item["spec"]):
        changed = f"{value}-x" if isinstance(value, str) else None
        found.append(Write(f"change {path}", _field(["spec", *path], changed)))
    for name, value in SPEC.get(resource, {}).items():
        found.append(Write(f"set {name}", _field(["spec", name], value)))
    for name, value in STATUS[resource].items():
        found.append(Write(f"status {name}", _field(["status", name], value), "/status"))
        found.append(Write(f"unset status {name}", _field(["status", name], None), "/status"))
    # The other path of a built-in object accepts changes to its metadata too.
    found += [
        Write(f"{one.name}, by its status", one.change, "/status")
        for one in list(found)
        if resource.startswith(("persistent", "volumeattach"))
        and not one.place
        and not one.name.startswith(("annotate", "unannotate"))
    ]
    return [*found, Write("DELETE", None)]


def changes(before: JsonObject, after: JsonObject) -> set[tuple[str, ...]]:
    """Return the added and the removed entries."""
    old, new = set(_facts(before)), set(_facts(after))
    return {("-", *one) for one in old - new} | {("+", *one) for one in new - old}


_OTHERS: Final = {
    "managedFields", "resourceVersion", "generation", "uid", "name", "creationTimestamp",
    "deletionGracePeriodSeconds",
}  # fmt: skip


def _facts(item: JsonObject) -> Iterator[tuple[str, ...]]:
    for part in ("spec", "status"):
        yield from ((part, *map(str, path), str(value)) for path, value in _leaves(item.get(part)))
    for name, value in item["metadata"].items():
        if name in _OTHERS:
            continue
        if name == "deletionTimestamp":
            yield (name,)
        elif isinstance(value, list):
            yield from ((name, str(one)) for one in value)
        else:
            yield from ((name, *map(str, path), str(one)) for path, one in _leaves(value))


def _leaves(value: Any) -> Iterator[tuple[list[str], Any]]:
    if not isinstance(value, dict):
        yield [], value
        return
    for name, part in value.items():
        yield from (([name, *path], leaf) for path, leaf in _leaves(part))


def _finalizer(name: str, *, add: bool) -> Callable[[JsonObject], JsonObject | None]:
    def change(item: JsonObject) -> JsonObject | None:
        known = item["metadata"].get("finalizers") or []
        if add is (name in known):
            return None
        left = [*known, name] if add else [one for one in known if one != name]
        return _with(item, ["metadata", "finalizers"], left)

    return change


def _owner(owner: JsonObject) -> Callable[[JsonObject], JsonObject | None]:
    def change(item: JsonObject) -> JsonObject | None:
        known = item["metadata"].get("ownerReferences") or []
        if any(one["uid"] == owner["uid"] for one in known):
            return None
        return _with(item, ["metadata", "ownerReferences"], [*known, owner])

    return change


def _field(path: list[str], value: Any) -> Callable[[JsonObject], JsonObject | None]:
    def change(item: JsonObject) -> JsonObject | None:
        new = _with(item, path, value)
        return None if new == item else new

    return change


def _with(item: JsonObject, path: list[str], value: Any) -> JsonObject:
    """Return the object with another value at that place; None removes the field."""
    new = copy.deepcopy(item)
    place = new
    for name in path[:-1]:
        if value is None and not place.get(name):
            return new
        place[name] = place.get(name) or {}
        place = place[name]
    if value is None:
        place.pop(path[-1], None)
    else:
        place[path[-1]] = value
    return new


def merge_patch(old: Any, new: Any) -> Any:
    """Return the merge patch that changes one object into the other."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    patch = {name: None for name in old if name not in new}
    for name, value in new.items():
        if name not in old:
            patch[name] = value
        elif old[name] != value:
            patch[name] = merge_patch(old[name], value)
    return patch
