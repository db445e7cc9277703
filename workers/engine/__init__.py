"""Runs every reconcile, whatever its controller."""
