"""The demo: a control plane, two example drivers and csi-fleet, shown at work on this machine."""
