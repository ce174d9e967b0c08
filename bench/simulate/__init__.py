"""A fleet in simulated time, to compare routing policies on traces and generated traffic.

The policies are those of the picker: the same ``Router`` runs here, with the simulation's clock.
"""
