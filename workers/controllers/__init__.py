"""One folder per controller: what the controller watches, decides and does."""
