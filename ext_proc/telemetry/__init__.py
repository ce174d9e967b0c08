"""Telemetry of replicas: pure parsers (dialects), and the collectors that feed them."""
