"""Metrics, traces and debug pages of the picker."""
