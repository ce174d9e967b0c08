"""How fast endpoints are: latency model, pending first bytes, slowdowns."""
