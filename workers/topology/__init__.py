"""Topology of volumes: requirements for the driver, and affinity for the volume.

The rules are in section 4 of the spec. All functions of this package are pure: they use no I/O, no
clock and no randomness. All modules use *terms*. A term is one place, described by ANDed label
pairs (see `workers.topology.terms`).
"""
