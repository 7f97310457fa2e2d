"""Hypothesis settings for simulated loops: their length varies, so no deadline per example."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "loops", deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("loops")
