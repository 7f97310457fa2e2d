"""Service: the HTTP edge. Authentication, limits and mapping; no decisions."""
