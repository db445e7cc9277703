"""Explains why an object waits: gathers facts once, then finds the first cause in pure code."""
