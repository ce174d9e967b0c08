"""Rules for what the edge asks of requests, so that none gets round it."""
