"""Replicas that were found: who they are, and the fleet that is published with them."""
