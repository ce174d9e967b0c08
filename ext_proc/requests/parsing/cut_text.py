"""A text that continues beyond the part that was read."""

from __future__ import annotations


class CutText(str):
    """A text whose end is beyond the part of the body that was read."""

    __slots__ = ()
