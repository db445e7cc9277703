"""Example: a provisioner of NFS volumes as a plug-in, without CSI (docs/custom-provisioners.md)."""
