"""Latency of endpoints: latency models, pending first bytes, slowdowns."""
