"""Triton replicas as child processes."""
