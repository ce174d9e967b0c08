"""Publish what pickers report of replicas: sick ones, placed models, bounds, stand-bys."""
