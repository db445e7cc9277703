"""A real cluster of one node on this machine, with every part of Kubernetes that handles volumes.

Needs root and Linux; everything runs in its own namespaces and ends with them.
"""
