"""Helpers beside a driver on each node: liveness probe and registration with the kubelet.

They use neither Redis nor the API server: a node must come up while the control plane is down
(NR-050). They load as little as they can, for there are two of them per driver and node.
"""
