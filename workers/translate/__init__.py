"""Pure functions that turn a claim into a driver's request, and the response into a volume."""
