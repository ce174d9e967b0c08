"""Pydantic models of the fleet, and their JSON Schema."""
