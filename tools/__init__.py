"""Build tools of a checkout; the wheel does not contain them."""
