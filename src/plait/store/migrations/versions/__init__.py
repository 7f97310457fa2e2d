"""Schema revisions, applied by ``store.database`` when a store is opened."""
