"""Workloads: the papers' settings and cluster traces, as values that a simulation is given."""
