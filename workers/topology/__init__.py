"""Topology of volumes: requirements for the driver, affinity for the volume (spec section 4).

Everything here is a pure function of its arguments: no I/O, no clock, no randomness. All modules
share the value *term*: one place, an AND of label pairs, see `workers.topology.terms`.
"""
