"""The echo controller, which answers each claim of a driver with an event."""
