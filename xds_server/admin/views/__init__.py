"""What operators are shown that takes more than a copy of values."""
