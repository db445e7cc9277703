"""The work queue, leases, intents, catalog and driver registry, all of them kept in Redis."""
