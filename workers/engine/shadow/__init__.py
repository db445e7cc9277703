"""A mode in which a controller decides but writes nothing, and is compared with the sidecar."""
