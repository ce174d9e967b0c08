"""A picker without a control server: its pools come from a fleet file."""
