"""One folder per controller: what the controller watches, how it decides, and what it does."""
