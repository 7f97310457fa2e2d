"""Figures beside other people's software, each in an environment of its own."""
