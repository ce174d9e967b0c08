"""Conversion of a fleet to the resources for Envoys and pickers. Pure."""
