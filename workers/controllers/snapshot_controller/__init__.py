"""Snapshots and the bindings of their contents, cluster-wide and without any driver."""
