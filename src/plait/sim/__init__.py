"""Simulator: the same policies on a virtual clock, over cost models instead of devices."""
