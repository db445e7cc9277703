"""The settings of the snapshotter: csi-snapshotter's flags, read once (SNS-100)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLE_UID: Final = -1
MAX_UID_LENGTH: Final = 32
GATE_GROUPS: Final = "CSIVolumeGroupSnapshot"


@dataclass(frozen=True, slots=True)
class NameRule:
    """How a snapshot is called at the driver.

    Attributes:
        prefix: first part of the name, before a dash.
        uid_length: characters of the UID without dashes; -1 keeps the UID as it is.
    """

    prefix: str
    uid_length: int = WHOLE_UID

    def name(self, uid: str) -> str:
        """The name for the object with this UID (SNA-007)."""
        if self.uid_length == WHOLE_UID:
            return f"{self.prefix}-{uid}"
        return f"{self.prefix}-{uid.replace('-', '')[: self.uid_length]}"


@dataclass(frozen=True, slots=True)
class SnapshotterSettings:
    """What csi-snapshotter's flags say.

    Attributes:
        timeout_seconds: deadline of every call.
        worker_threads: calls at the same time, per driver.
        retry_start_seconds, retry_max_seconds: back-off of a content that fails.
        snapshot_name, group_name: names at the driver.
        extra_metadata: whether CreateSnapshot tells names of snapshot and content.
        groups: whether group snapshots are served.
        deletes_unread: a pre-provisioned content whose status never got a handle takes its snapshot
            along when its policy is Delete (SND-021).
    """

    timeout_seconds: float = 60.0
    worker_threads: int = 10
    retry_start_seconds: float = 1.0
    retry_max_seconds: float = 300.0
    snapshot_name: NameRule = NameRule("snapshot")
    group_name: NameRule = NameRule("groupsnapshot")
    extra_metadata: bool = False
    groups: bool = True
    deletes_unread: bool = True

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """From flag values by name; an absent one takes its default.

        Raises:
            ConfigError: exit 1; an empty prefix, or a length that gives no name (SND-025).
        """

        def rule(kind: str) -> NameRule:
            prefix = values.get(f"{kind}-name-prefix", kind)
            length = int(values.get(f"{kind}-name-uuid-length", WHOLE_UID))
            if not prefix:
                title = "Snapshot" if kind == "snapshot" else "Group snapshot"
                raise ConfigError(f"{title} name prefix cannot be of length 0", exit_code=1)
            if length != WHOLE_UID and not 1 <= length <= MAX_UID_LENGTH:
                raise ConfigError(
                    f"--{kind}-name-uuid-length={length}: use -1 (whole UID) or 1 to 32; "
                    "otherwise different snapshots would share one name",
                    exit_code=1,
                )
            return NameRule(prefix, length)

        if values.get("node-deployment") and values.get("leader-election"):
            raise ConfigError(
                "--leader-election cannot be used with --node-deployment: every node works for "
                "itself",
                exit_code=1,
            )
        gates: Mapping[str, bool] = values.get("feature-gates") or {}
        usual = cls()
        return cls(
            timeout_seconds=float(values.get("timeout", usual.timeout_seconds)),
            worker_threads=max(1, int(values.get("worker-threads", usual.worker_threads))),
            retry_start_seconds=float(
                values.get("retry-interval-start", usual.retry_start_seconds)
            ),
            retry_max_seconds=float(values.get("retry-interval-max", usual.retry_max_seconds)),
            snapshot_name=rule("snapshot"),
            group_name=rule("groupsnapshot"),
            extra_metadata=bool(values.get("extra-create-metadata", False)),
            groups=bool(gates.get(GATE_GROUPS, True)),
            deletes_unread=bool(values.get("delete-unread-snapshots", True)),
        )
