"""Figures measured on this machine with the real engine."""
