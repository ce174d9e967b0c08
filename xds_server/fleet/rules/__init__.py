"""Rules over several fields of a fleet."""
