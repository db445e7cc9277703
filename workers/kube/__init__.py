"""A client of the Kubernetes API that sends raw JSON over libcurl.

It contains no code for CSI or Redis.
"""
