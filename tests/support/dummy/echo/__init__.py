"""Echoes: answers each claim of a driver with an event."""
