"""Calls of the gateway that are streams: watches of its readiness, and reflection."""
