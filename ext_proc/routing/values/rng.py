"""The source of randomness that routing takes as an argument."""

from __future__ import annotations

from typing import Protocol


class Rng(Protocol):
    """A source of chance; ``random.Random`` is one."""

    def random(self) -> float:
        """Return the next number in [0, 1)."""
        ...
