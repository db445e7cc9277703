"""Client of the Kubernetes API: raw JSON over libcurl. It knows nothing of CSI or Redis."""
