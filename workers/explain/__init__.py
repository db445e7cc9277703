"""Explains why an object is waiting: gathers the facts once, then finds the first cause, without I/O."""
