"""Defines csi-snapshotter's flags and reads the snapshotter's settings from them (SNS-100)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from workers.config.flagfields import setting, with_flags
from workers.config.flags import POSITIVE, RESYNC_COMMANDS, Command, Flag
from workers.config.flags import Kind as Value
from workers.config.gates import SNAPSHOT_TOPOLOGY
from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLE_UID: Final = -1
MAX_UID_LENGTH: Final = 32
GATE_GROUPS: Final = "CSIVolumeGroupSnapshot"


_RUN_WORKER: Final = frozenset({Command.RUN, Command.WORKER})
_DRIVER_TOOLS: Final = frozenset({Command.AUDIT, Command.DOCTOR, Command.CONFORMANCE})
_BOOL, _INT, _UINT, _STRING = Value.BOOL, Value.INT, Value.UINT, Value.STRING
_DURATION: Final = Value.DURATION

FLAGS: Final = (
    Flag("timeout", _DURATION, "1m", "Deadline for each CSI call.", _RUN_WORKER | _DRIVER_TOOLS,
         bound=POSITIVE),
    Flag("worker-threads", _UINT, "10", "How many snapshot contents may be reconciled at the same "
         "time per driver, across all worker processes."),
    Flag("retry-interval-start", _DURATION, "1s", "First retry interval of a failed snapshot "
         "content. It doubles with each failure.", bound=POSITIVE),
    Flag("retry-interval-max", _DURATION, "5m", "Longest retry interval.", bound=POSITIVE),
    Flag("snapshot-name-prefix", _STRING, "snapshot", "Prefix of the names of snapshots in the "
         "driver. The name is this prefix, a dash and the UID of the VolumeSnapshot."),
    Flag("snapshot-name-uuid-length", _INT, "-1", "Number of characters (1 to 32) of "
         "the VolumeSnapshot's UID, without dashes, to use in the snapshot name; -1 means the "
         "whole UID with its dashes."),
    Flag("groupsnapshot-name-prefix", _STRING, "groupsnapshot", "Prefix of the names of group "
         "snapshots in the driver. The name is this prefix, a dash and the UID of the "
         "VolumeGroupSnapshot."),
    Flag("groupsnapshot-name-uuid-length", _INT, "-1", "Number of characters (1 to 32) of "
         "the VolumeGroupSnapshot's UID, without dashes, to use in the name of the group snapshot; "
         "-1 means the whole UID with its dashes."),
    Flag("extra-create-metadata", _BOOL, "false", "Add the names of the snapshot and of its "
         "content to the parameters of CreateSnapshot.", _RUN_WORKER),
    Flag("node-deployment", _BOOL, "false", "Handle only the snapshot contents whose label names "
         "the node in the environment variable NODE_NAME. An audit ignores the snapshots of other "
         "nodes.",
         _RUN_WORKER | {Command.AUDIT}),
    Flag("resync-period", _DURATION, "15m", "How often every unfinished snapshot content is "
         "rechecked.", RESYNC_COMMANDS, bound=POSITIVE),
    Flag("delete-unread-snapshots", _BOOL, "true", "When a pre-provisioned content with policy "
         "Delete is deleted before its status has a handle, delete its snapshot too. "
         "csi-snapshotter leaves that snapshot in the storage backend.",
         _RUN_WORKER, upstream=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NameRule:
    """The rule by which a snapshot is named at the driver.

    Attributes:
        prefix: the first part of the name, before a dash.
        uid_length: how many characters of the UID are used, without dashes; -1 keeps the UID as
            it is.
    """

    prefix: str
    uid_length: int = WHOLE_UID

    def name(self, uid: str) -> str:
        """Returns the name for the object with this UID (SNA-007)."""
        if self.uid_length == WHOLE_UID:
            return f"{self.prefix}-{uid}"
        return f"{self.prefix}-{uid.replace('-', '')[: self.uid_length]}"


@dataclass(frozen=True, slots=True)
class SnapshotterSettings:
    """The values of csi-snapshotter's flags.

    Attributes:
        timeout_seconds: the timeout of every call.
        worker_threads: the number of concurrent reconciles per kind of content.
        retry_interval_start_seconds, retry_interval_max_seconds: the back-off for a snapshot
            content whose reconcile fails.
        snapshot_name, group_name: how snapshots and groups are named at the driver.
        extra_metadata: whether CreateSnapshot's parameters include the names of snapshot and
            content.
        groups: whether group snapshots are served.
        has_topology: whether snapshots have a topology, if the driver has that capability too.
        deletes_unread: whether deleting a pre-provisioned snapshot content with policy Delete
            also deletes its snapshot if the status never got a handle (SND-021).
    """

    timeout_seconds: float = setting("timeout", FLAGS)
    worker_threads: int = setting("worker-threads", FLAGS)
    retry_interval_start_seconds: float = setting("retry-interval-start", FLAGS)
    retry_interval_max_seconds: float = setting("retry-interval-max", FLAGS)
    snapshot_name: NameRule = NameRule("snapshot")
    group_name: NameRule = NameRule("groupsnapshot")
    extra_metadata: bool = setting("extra-create-metadata", FLAGS)
    groups: bool = True
    has_topology: bool = False
    deletes_unread: bool = setting("delete-unread-snapshots", FLAGS)


def read_settings(values: Mapping[str, Any]) -> SnapshotterSettings:
    """Reads the settings from flag values by name; an absent flag has its default value.

    Raises:
        ConfigError: a prefix is empty, a length gives no name (SND-025), or leader election is
            combined with node deployment; the exit code is 1.
    """
    if values.get("node-deployment") and values.get("leader-election"):
        raise ConfigError(
            "--leader-election cannot be used with --node-deployment, because every node works "
            "independently. Remove one of the two flags",
            exit_code=1,
        )
    gates: Mapping[str, bool] = values.get("feature-gates") or {}
    groups = bool(gates.get(GATE_GROUPS, True))
    names = SnapshotterSettings(
        snapshot_name=_name_rule(values, "snapshot"),
        # The flags for group names are not checked if group snapshots are disabled (SNS-110).
        group_name=_name_rule(values if groups else {}, "groupsnapshot"),
        groups=groups,
        has_topology=bool(gates.get(SNAPSHOT_TOPOLOGY, False)),
    )
    found = with_flags(names, values)
    return replace(found, worker_threads=max(1, found.worker_threads))


def _name_rule(values: Mapping[str, Any], kind: str) -> NameRule:
    prefix = values.get(f"{kind}-name-prefix", kind)
    length = int(values.get(f"{kind}-name-uuid-length", WHOLE_UID))
    if not prefix:
        title = "Snapshot" if kind == "snapshot" else "Group snapshot"
        raise ConfigError(f"{title} name prefix cannot be of length 0", exit_code=1)
    if length != WHOLE_UID and not 1 <= length <= MAX_UID_LENGTH:
        raise ConfigError(
            f"--{kind}-name-uuid-length={length} would give different snapshots the same name. Use "
            "-1 (the whole UID) or 1 to 32",
            exit_code=1,
        )
    return NameRule(prefix, length)
