"""Build tools of a checkout; no wheel carries them."""
