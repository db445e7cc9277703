"""Publishes and unpublishes volumes for VolumeAttachments, as csi-attacher does."""
