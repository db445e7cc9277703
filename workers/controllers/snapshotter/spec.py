"""Describes csi-snapshotter as data, with the flags and defaults of v8.6 (SNS-100)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.config.gates import SNAPSHOT_TOPOLOGY, GateSpec
from workers.controllers.snapshotter.rules import (
    KIND_CONTENTS,
    KIND_GROUP_CONTENTS,
    SnapshotterRules,
)
from workers.controllers.snapshotter.settings import FLAGS, GATE_GROUPS, read_settings
from workers.kube import paths
from workers.kube.objects import AnyObject, GroupSnapshotContent, SnapshotContent
from workers.spec import Kind, Permission, Spec, Watch

if TYPE_CHECKING:
    from workers.spec import Records

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
        effect="Send a class's `allowedTopologies` to the driver, and write the topology of a "
        "snapshot to its content's `nodeAffinity`.",
    ),
)

PERMISSIONS: Final = (
    Permission(
        "snapshot.storage.k8s.io",
        ("volumesnapshotclasses",),
        ("get", "list", "watch"),
        "parameters",
    ),
    Permission(
        "snapshot.storage.k8s.io",
        ("volumesnapshotcontents",),
        ("get", "list", "watch", "patch"),
        "annotation being-created, finalizer",
    ),
    Permission(
        "snapshot.storage.k8s.io", ("volumesnapshotcontents/status",), ("patch",), "handle, errors"
    ),
    Permission(
        "groupsnapshot.storage.k8s.io",
        ("volumegroupsnapshotclasses",),
        ("get", "list", "watch"),
        "parameters of groups",
        feature="groups",
    ),
    Permission(
        "groupsnapshot.storage.k8s.io",
        ("volumegroupsnapshotcontents",),
        ("get", "list", "watch", "patch"),
        "the same for groups",
        feature="groups",
    ),
    Permission(
        "groupsnapshot.storage.k8s.io",
        ("volumegroupsnapshotcontents/status",),
        ("patch",),
        "handles, errors",
        feature="groups",
    ),
    Permission("", ("events",), ("create", "patch"), "errors"),
    Permission("", ("secrets",), ("get",), "credentials of the calls", feature="secrets"),
)


def lease_name(driver: str) -> str:
    """Returns the name of csi-snapshotter's Kubernetes Lease (SNS-110)."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in driver)
    return f"external-snapshotter-leader-{kept}"


def _has_new_queue(before: Records, now: Records) -> bool:
    """True if a driver or its node is new, because only a new list shows its snapshot contents."""
    return not {one["queue_name"] for one in now} <= {one["queue_name"] for one in before}


SPEC: Final = Spec(
    name="snapshotter",
    program="csi-snapshotter",
    kinds=(
        Kind(
            KIND_CONTENTS,
            task="contents.sync",
            work_queue="csi-snapshotter-content",
            operations=("snapshot", "delete-snapshot"),
            subject=paths.SNAPSHOT_CONTENTS,
            noun="content",
        ),
        Kind(
            KIND_GROUP_CONTENTS,
            task="contents.group",
            work_queue="csi-snapshotter-groupsnapshotcontent",
            operations=("group-snapshot",),
            subject=paths.GROUP_SNAPSHOT_CONTENTS,
            noun="group-content",
        ),
    ),
    watches=(
        Watch(paths.SNAPSHOT_CONTENTS, SnapshotContent, relists=_has_new_queue),
        Watch(paths.SNAPSHOT_CLASSES, AnyObject, metadata_only=True),
        Watch(paths.GROUP_SNAPSHOT_CONTENTS, GroupSnapshotContent, relists=_has_new_queue),
        Watch(paths.GROUP_SNAPSHOT_CLASSES, AnyObject, metadata_only=True),
    ),
    make_rules=SnapshotterRules,
    lease_name=lease_name,
    flags=FLAGS,
    read_settings=read_settings,
    gates=GATES,
    permissions=PERMISSIONS,
    unserved="CSI driver does not support ControllerCreateSnapshot",
    unserved_code=1,
)
