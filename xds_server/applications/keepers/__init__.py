"""Publish what pickers report of replicas: sick ones, placed models, stand-bys in use."""
