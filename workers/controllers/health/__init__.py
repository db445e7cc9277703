"""Writes the health that a driver reports for its volumes to their claims."""
