"""Routing: which replica serves a request. Pure: no I/O, no clock, no chance of its own."""
