"""Endpoints from a Kubernetes API server."""
