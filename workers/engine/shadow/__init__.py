"""A mode in which a controller decides but writes nothing, to be compared with the sidecar."""
