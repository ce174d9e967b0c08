"""The immutable values of routing."""
