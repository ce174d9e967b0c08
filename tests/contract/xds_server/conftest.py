"""Fixtures of the control server's tests."""

from support.built_listeners import listeners_are_built_once

__all__ = ["listeners_are_built_once"]
