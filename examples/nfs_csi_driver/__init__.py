"""Example: a CSI driver for NFS in Python, replacing nfs.csi.k8s.io (README.md in this folder)."""
