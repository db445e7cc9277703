"""Does the work of csi-attacher: publishes and unpublishes volumes as VolumeAttachments request."""
