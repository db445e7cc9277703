"""Node deployment mode: which node's provisioner makes an unowned claim its own (spec section 5).

Pure decisions only; waiting, reading and writing the claim is the caller's.
"""
