"""A controller that is not in the repository: one folder, as a newcomer would write it."""
