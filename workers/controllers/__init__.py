"""One folder per controller: what it watches, decides and does."""
