"""Asks replicas which models they have."""
