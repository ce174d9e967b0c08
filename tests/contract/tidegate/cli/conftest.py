"""Fixtures of the command line's tests."""

from support.command_line import admin, run, silent_server

__all__ = ["admin", "run", "silent_server"]
