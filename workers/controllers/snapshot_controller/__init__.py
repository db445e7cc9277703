"""Binds snapshots to their snapshot contents for the whole cluster, as snapshot-controller does."""
