"""E-values from counts: rates of failing sessions, times, caches."""
