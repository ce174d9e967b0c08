"""Requests that wait in the picker for a replica with room."""
