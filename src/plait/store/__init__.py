"""The durable truth of a launch: tenants, runs, versions, mutations, checkpoints, usage."""
