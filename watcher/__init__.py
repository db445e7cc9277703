"""Turns API events into keys: a lightweight process without gRPC or domain code."""
