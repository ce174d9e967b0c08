"""The rules that hold between the fields of a fleet."""
