"""The verbs of the command line, one family per module."""
