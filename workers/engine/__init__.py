"""The frame around every reconcile, whatever its controller."""
