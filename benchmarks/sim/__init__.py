"""Figures on a virtual clock: the papers' settings, simulated."""
