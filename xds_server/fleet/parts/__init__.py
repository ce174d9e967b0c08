"""Reuse of the unchanged parts of a fleet, so that a change costs what it touches."""
