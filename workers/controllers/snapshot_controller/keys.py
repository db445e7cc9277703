"""The keys of the snapshot controller; none of them has a driver."""

from __future__ import annotations

from typing import Final

from workers.queue.keys import Key

KIND_SNAPSHOTS: Final = "snapshots"
KIND_BINDINGS: Final = "bindings"
KIND_GROUPS: Final = "group-snapshots"
KIND_GROUP_BINDINGS: Final = "group-bindings"
KIND_SOURCES: Final = "snapshot-sources"


def snapshot_key(namespace: str, name: str) -> Key:
    """Return the key of a VolumeSnapshot."""
    return Key(KIND_SNAPSHOTS, "", f"{namespace}/{name}")


def binding_key(content: str) -> Key:
    """Return this controller's key for a VolumeSnapshotContent; the snapshotter has its own key."""
    return Key(KIND_BINDINGS, "", content)


def group_key(namespace: str, name: str) -> Key:
    """Return the key of a VolumeGroupSnapshot."""
    return Key(KIND_GROUPS, "", f"{namespace}/{name}")


def group_binding_key(content: str) -> Key:
    """Return this controller's key for a VolumeGroupSnapshotContent."""
    return Key(KIND_GROUP_BINDINGS, "", content)


def source_key(claim: str) -> Key:
    """Return the key of a claim (`namespace/name`) that snapshots were taken from."""
    return Key(KIND_SOURCES, "", claim)
