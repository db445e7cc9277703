"""The CSI drivers that this process serves, and its connections to them."""
