"""Figures D1 to D8: the service, through the clients that people have."""
