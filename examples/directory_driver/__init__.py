"""An example CSI driver that keeps each volume as a directory; see `__main__` for its flags."""
