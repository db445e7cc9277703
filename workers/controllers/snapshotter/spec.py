"""csi-snapshotter as data. Flags and defaults are those of external-snapshotter v8.6 (SNS-100)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.config.flags import Command, Flag
from workers.config.flags import Kind as Value
from workers.config.gates import GateSpec
from workers.controllers.snapshotter.rules import (
    KIND_CONTENTS,
    KIND_GROUP_CONTENTS,
    SnapshotterRules,
)
from workers.controllers.snapshotter.settings import GATE_GROUPS, SnapshotterSettings
from workers.kube import paths
from workers.kube.objects import AnyObject, GroupSnapshotContent, SnapshotContent
from workers.spec import Kind, Permission, Spec, Watch

if TYPE_CHECKING:
    from workers.spec import Records

_RUN_WORKER: Final = frozenset({Command.RUN, Command.WORKER})
_DRIVER_TOOLS: Final = frozenset({Command.AUDIT, Command.DOCTOR, Command.CONFORMANCE})
_BOOL, _INT, _UINT, _STRING = Value.BOOL, Value.INT, Value.UINT, Value.STRING
_DURATION: Final = Value.DURATION

FLAGS: Final = (
    Flag("timeout", _DURATION, "1m", "Deadline of each CSI call.", _RUN_WORKER | _DRIVER_TOOLS),
    Flag("worker-threads", _UINT, "10", "Contents worked on at the same time per driver, over all "
         "worker processes."),
    Flag("retry-interval-start", _DURATION, "1s", "First retry interval of a failed content; "
         "doubles with each failure."),
    Flag("retry-interval-max", _DURATION, "5m", "Longest retry interval."),
    Flag("snapshot-name-prefix", _STRING, "snapshot", "A snapshot's name at the driver is this, a "
         "dash and the UID of the VolumeSnapshot."),
    Flag("snapshot-name-uuid-length", _INT, "-1", "Keep only that many characters (1 to 32) of the "
         "UID without its dashes; -1 keeps the whole UID with its dashes."),
    Flag("groupsnapshot-name-prefix", _STRING, "groupsnapshot", "The same for group snapshots."),
    Flag("groupsnapshot-name-uuid-length", _INT, "-1", "The same for group snapshots."),
    Flag("extra-create-metadata", _BOOL, "false", "Add names of snapshot and content to the "
         "parameters of CreateSnapshot.", _RUN_WORKER),
    Flag("node-deployment", _BOOL, "false", "Take only the contents whose label names the node of "
         "the environment variable NODE_NAME."),
    Flag("resync-period", _DURATION, "15m", "Period in which every undecided content is looked at "
         "again."),
    Flag("delete-unread-snapshots", _BOOL, "true", "A pre-provisioned content with policy Delete "
         "whose status never got a handle takes its snapshot along; csi-snapshotter leaves it in "
         "the storage.", _RUN_WORKER, upstream=False),
)  # fmt: skip

GATES: Final = (
    GateSpec(GATE_GROUPS, "GA", default=True, effect="group snapshots, where their CRDs are"),
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
    """The Lease of the Go sidecar (SNS-110)."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in driver)
    return f"external-snapshotter-leader-{kept}"


def _has_new_queue(before: Records, now: Records) -> bool:
    """A driver or a node of one came: only a new list tells of its contents."""
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
    read_settings=SnapshotterSettings.read,
    gates=GATES,
    permissions=PERMISSIONS,
    unserved="CSI driver does not support ControllerCreateSnapshot",
    unserved_code=1,
)
