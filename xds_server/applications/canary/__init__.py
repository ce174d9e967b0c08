"""Canaries that decide: evidence about a variant from counts, and what follows from it."""
