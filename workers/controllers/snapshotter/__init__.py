"""Creates, polls and deletes the snapshots of VolumeSnapshotContents, as csi-snapshotter does."""
