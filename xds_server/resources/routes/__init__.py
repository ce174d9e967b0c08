"""Envoy's routes (RDS)."""
