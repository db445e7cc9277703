"""Flags, settings and feature gates of every process."""
