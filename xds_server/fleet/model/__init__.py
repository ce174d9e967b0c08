"""The fleet as pydantic models, and its JSON Schema."""
