"""Helpers in a driver's pod on each node: liveness probe and registration with the kubelet.

They use neither Redis nor the API server: a node must come up while the control plane is down
(NR-050). They load as little code as possible, because each driver has two of them on each node.
"""
