"""Client of the Kubernetes API: raw JSON over libcurl. It contains no code for CSI or Redis."""
