"""Warns about a claim whose data source kind no VolumePopulator registers."""
