"""The workers, the command-line tools and the code that they share."""
