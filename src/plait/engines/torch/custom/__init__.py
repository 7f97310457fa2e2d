"""A client's own loss, carried out for one datum at a time."""
