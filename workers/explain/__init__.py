"""Explains why an object is waiting: gathers the facts once, then finds the cause without I/O."""
