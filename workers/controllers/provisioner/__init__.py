"""Provisions a volume for each claim and deletes released volumes, as csi-provisioner does."""
