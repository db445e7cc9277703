"""The CSI drivers that this process serves."""
