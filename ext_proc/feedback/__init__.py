"""Outcomes of requests: Envoy's access-log stream, and readiness probes."""
