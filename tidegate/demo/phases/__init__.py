"""Phases of the demo; each takes a ``Scene`` and returns a ``PhaseFinding``."""
