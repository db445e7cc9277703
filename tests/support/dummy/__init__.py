"""A controller that is not part of csi-fleet, in one folder, as a new contributor would write
it."""
