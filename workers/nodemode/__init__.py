"""Node deployment mode: decides which node's provisioner takes an unowned claim (spec section 5).

Only pure functions; the caller waits, reads and writes the claim.
"""
