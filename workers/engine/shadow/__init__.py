"""A mode in which a controller decides but writes nothing, to compare it with the sidecar."""
