"""Creates, polls and deletes the snapshots of snapshot contents, as csi-snapshotter does."""
