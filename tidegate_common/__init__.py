"""Modules that the picker, the control server and the CLI share; it imports none of these."""
