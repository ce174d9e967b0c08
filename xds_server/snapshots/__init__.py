"""Whole resource snapshots: built, checked, and ordered into the stages of a change."""
