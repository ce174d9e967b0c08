"""Settings for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The same examples in every run; a search for new ones is a run of its own:
# `pytest --hypothesis-profile=search`. Neither a deadline nor a check of how long examples take to
# make: a busy machine is no failure.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **UNTIMED)
settings.register_profile("search", max_examples=2000, **UNTIMED)
settings.load_profile("repeatable")
