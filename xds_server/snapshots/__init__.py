"""Snapshots: building, checking, and ordering into the stages of a change."""
