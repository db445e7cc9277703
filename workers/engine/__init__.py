"""Runs every reconcile, for all controllers."""
