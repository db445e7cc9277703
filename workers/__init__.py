"""Workers, command line tools and all that they need: from a key in Redis to a saved object."""
