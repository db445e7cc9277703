"""Node deployment mode: decides which node's provisioner takes an unowned claim (spec section 5).

The package contains only pure functions: the caller waits, and reads and writes the claim.
"""
