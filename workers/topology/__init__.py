"""Where a volume may live: requirements for the driver, affinity for the volume (spec section 4).

Everything here is a pure function of its arguments: no I/O, no clock, no randomness. A *term* (one
place, an AND of label pairs) is the value all modules share, see `workers.topology.terms`.
"""
