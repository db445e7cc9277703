"""Explains why an object waits: gathers the facts once, then finds the first cause without I/O."""
