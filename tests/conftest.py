"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

# The same examples in every run; a search for new ones is a run of its own:
# `pytest --hypothesis-profile=search`. No deadline: a busy machine is no failure.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile("repeatable")
