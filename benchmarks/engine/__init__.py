"""Figures of the torch engine alone, without a launch."""
