"""Everything between a key in Redis and a saved PersistentVolume."""
