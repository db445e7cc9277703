"""Pure functions that turn a claim into a driver's request, and the answer into a volume."""
