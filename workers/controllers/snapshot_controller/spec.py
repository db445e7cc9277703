"""Describes snapshot-controller as data, with the flags and defaults of v8.6 (SNC-100)."""

from __future__ import annotations

from typing import Final

from workers.config.gates import SNAPSHOT_TOPOLOGY, GateSpec
from workers.controllers.snapshot_controller import keys
from workers.controllers.snapshot_controller.rules import SnapshotControllerRules
from workers.controllers.snapshot_controller.settings import FLAGS, GATE_GROUPS, read_settings
from workers.kube import paths
from workers.kube.objects import (
    AnyObject,
    Claim,
    GroupSnapshot,
    GroupSnapshotContent,
    Snapshot,
    SnapshotContent,
)
from workers.spec import Kind, Permission, Spec, Watch

_SNAPSHOT: Final = "snapshot.storage.k8s.io"
_GROUP: Final = "groupsnapshot.storage.k8s.io"
_READ: Final = ("get", "list", "watch")
GATES: Final = (
    GateSpec(
        GATE_GROUPS,
        "GA",
        default=True,
        effect="Support group snapshots, if their CRDs are installed.",
    ),
    GateSpec(
        SNAPSHOT_TOPOLOGY,
        "ALPHA",
        default=False,
        effect="Accepted without effect, because snapshotter and provisioner do this work.",
    ),
)

PERMISSIONS: Final = (
    Permission("", ("persistentvolumes",), ("get",), "driver and handle of the source"),
    Permission("", ("persistentvolumeclaims",), (*_READ, "patch"), "finalizer of the source"),
    Permission("", ("nodes",), ("get", "list"), "labels of local volumes", feature="distributed"),
    Permission(
        "storage.k8s.io", ("csinodes",), ("get",), "nodes with the driver", feature="distributed"
    ),
    Permission("", ("events",), ("create", "patch"), "progress and errors"),
    Permission(_SNAPSHOT, ("volumesnapshotclasses",), _READ, "driver, policy, parameters"),
    Permission(_SNAPSHOT, ("volumesnapshots",), (*_READ, "patch"), "class and finalizers"),
    Permission(_SNAPSHOT, ("volumesnapshots/status",), ("patch",), "binding, readiness, errors"),
    Permission(
        _SNAPSHOT,
        ("volumesnapshotcontents",),
        (*_READ, "create", "patch", "delete"),
        "a content per snapshot",
    ),
    Permission(
        "gateway.networking.k8s.io",
        ("referencegrants",),
        ("get", "list"),
        "restores into other namespaces",
        feature="cross-namespace",
    ),
    Permission(_GROUP, ("volumegroupsnapshotclasses",), _READ, "as above", feature="groups"),
    Permission(_GROUP, ("volumegroupsnapshots",), (*_READ, "patch"), "as above", feature="groups"),
    Permission(_GROUP, ("volumegroupsnapshots/status",), ("patch",), "as above", feature="groups"),
    Permission(
        _GROUP,
        ("volumegroupsnapshotcontents",),
        (*_READ, "create", "patch", "delete"),
        "as above",
        feature="groups",
    ),
    Permission(_SNAPSHOT, ("volumesnapshots",), ("create", "delete"), "members", feature="groups"),
    Permission(
        _SNAPSHOT, ("volumesnapshotcontents/status",), ("patch",), "members", feature="groups"
    ),
    Permission("", ("persistentvolumes",), ("list",), "members' volumes", feature="groups"),
)


def lease_name(_driver: str) -> str:
    """Returns the name of snapshot-controller's Kubernetes Lease (SNC-110)."""
    return "snapshot-controller-leader"


SPEC: Final = Spec(
    name="snapshot-controller",
    program="snapshot-controller",
    kinds=(
        Kind(
            keys.KIND_SNAPSHOTS,
            task="snapshots.sync",
            work_queue="snapshot-controller-snapshot",
            subject=paths.SNAPSHOTS,
            noun="snapshot",
            has_driver=False,
        ),
        Kind(
            keys.KIND_BINDINGS,
            task="snapshots.bind",
            work_queue="snapshot-controller-content",
            subject=paths.SNAPSHOT_CONTENTS,
            noun="binding",
            has_driver=False,
        ),
        Kind(
            keys.KIND_GROUPS,
            task="snapshots.group",
            work_queue="snapshot-controller-group-snapshot",
            subject=paths.GROUP_SNAPSHOTS,
            noun="group-snapshot",
            has_driver=False,
        ),
        Kind(
            keys.KIND_GROUP_BINDINGS,
            task="snapshots.bind-group",
            work_queue="snapshot-controller-group-content",
            subject=paths.GROUP_SNAPSHOT_CONTENTS,
            noun="group-binding",
            has_driver=False,
        ),
        Kind(
            keys.KIND_SOURCES,
            task="snapshots.release",
            work_queue="snapshot-controller-claim",
            subject=paths.CLAIMS,
            has_driver=False,
        ),
    ),
    watches=(
        Watch(paths.SNAPSHOTS, Snapshot),
        Watch(paths.SNAPSHOT_CONTENTS, SnapshotContent),
        Watch(paths.SNAPSHOT_CLASSES, AnyObject, metadata_only=True),
        Watch(paths.CLAIMS, Claim),
        Watch(paths.GROUP_SNAPSHOTS, GroupSnapshot),
        Watch(paths.GROUP_SNAPSHOT_CONTENTS, GroupSnapshotContent),
        Watch(paths.GROUP_SNAPSHOT_CLASSES, AnyObject, metadata_only=True),
    ),
    make_rules=SnapshotControllerRules,
    lease_name=lease_name,
    flags=FLAGS,
    read_settings=read_settings,
    gates=GATES,
    permissions=PERMISSIONS,
    needs_driver=False,
)
