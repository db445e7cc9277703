"""Client of the Kubernetes API: raw JSON over libcurl. Knows nothing of CSI or Redis."""
