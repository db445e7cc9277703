"""Warns about a claim whose kind of source no VolumePopulator names."""
