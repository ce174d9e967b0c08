"""Faults of real processes, each on a host of its own."""
