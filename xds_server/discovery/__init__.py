"""Source of the fleet: the watched file."""
