"""Rng: the source of randomness that routing takes as an argument."""

from __future__ import annotations

from typing import Protocol


class Rng(Protocol):
    """A source of random numbers, e.g. ``random.Random``."""

    def random(self) -> float:
        """Return the next number in [0, 1)."""
        ...
