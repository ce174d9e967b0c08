"""What the picker counts, traces and shows."""
