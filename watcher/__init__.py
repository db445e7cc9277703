"""Turns API events into keys: a light process without gRPC or domain code."""
