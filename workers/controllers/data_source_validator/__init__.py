"""Warns about a claim if no VolumePopulator handles the kind of its data source."""
