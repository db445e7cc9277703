"""The Kubernetes API: raw JSON over the official client's pool, nothing of CSI or Redis."""
