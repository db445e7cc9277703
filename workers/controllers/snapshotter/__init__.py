"""Contents of snapshots: CreateSnapshot, polling and DeleteSnapshot, as csi-snapshotter does it."""
