"""What became of single requests. Pure."""
