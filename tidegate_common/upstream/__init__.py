"""Requests to replicas, with the TLS of their pool, for all that ask them."""
