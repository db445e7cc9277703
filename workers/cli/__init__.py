"""The commands of `csi-fleet`: wiring only, no rules."""
