"""Helpers in a driver's pod on each node: the liveness probe and the registration with the kubelet.

They use neither Redis nor the API server, because a node must start even while the control plane is
down (NR-050). They load as little code as possible, because each driver has two of them on every
node.
"""
