"""Traces on which nothing was tuned, and the comparison of policies on them."""
