"""csi-attacher on the engine: VolumeAttachments become publications of a driver, and end again."""
