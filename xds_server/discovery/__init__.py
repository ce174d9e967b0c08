"""Where a fleet comes from: the watched file."""
