"""Simulated schedules of faults, under virtual time, of services' own code."""
