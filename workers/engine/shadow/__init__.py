"""A controller that decides, writes nothing, and is compared with the sidecar beside it."""
