"""Replicas that were found, and what else is published beside a revision."""
