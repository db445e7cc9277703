"""The work of csi-attacher: publishes and unpublishes volumes as VolumeAttachments ask."""
