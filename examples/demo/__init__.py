"""The demo: runs a control plane, two example drivers and csi-fleet on this machine."""
