"""Binds snapshots to their contents for the whole cluster, as snapshot-controller does."""
