"""Warns about a claim whose data source kind is not registered by any VolumePopulator."""
