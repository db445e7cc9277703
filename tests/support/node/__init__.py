"""A real cluster of one node on this machine: every part of Kubernetes that a volume meets.

Needs root and Linux; everything runs in namespaces of its own and ends with them.
"""
