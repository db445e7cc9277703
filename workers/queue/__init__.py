"""The work queue, leases, intents, catalog and driver registry kept in Redis."""
