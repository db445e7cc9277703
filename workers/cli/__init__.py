"""The commands of `csi-fleet`: they only connect the parts and contain no rules."""
