"""The verbs of the command line, one group per module."""
