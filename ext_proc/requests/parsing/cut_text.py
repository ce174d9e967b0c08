"""A text that goes on beyond what was read."""

from __future__ import annotations


class CutText(str):
    """A text whose end lies beyond the part of the body that was read."""

    __slots__ = ()
