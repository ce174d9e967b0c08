"""Routing: selects the replica for each request. Pure: no I/O, no clock, no own randomness."""
