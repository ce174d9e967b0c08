"""Verbs that show what is now: `top`, `config-dump`."""
