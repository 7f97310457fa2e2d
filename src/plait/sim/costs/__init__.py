"""Costs: how long work takes and what it occupies, by device and model."""
