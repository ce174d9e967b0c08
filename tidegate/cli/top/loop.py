"""The loop of ``top``: looks, draws, and obeys keys.

Rules:

1. The first look that fails ends the command, so that a wrong address is seen. After that the last
   answer stays, with the reason and its age, and the next round tries again.
2. A key redraws what was seen; it does not ask the control server.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from tidegate.cli.top.model import Sort
from tidegate.cli.top.screen import screen
from tidegate.terminal.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tidegate.cli.top.model import Glance


class Surface(Protocol):
    """A terminal."""

    def size(self) -> tuple[int, int]:
        """Return columns and lines."""

    def draw(self, lines: Sequence[str]) -> None:
        """Show the lines instead of those before."""

    def key(self, wait_s: float) -> str:
        """Return the key pressed within ``wait_s`` seconds; empty = none."""


def follow(
    look: Callable[[], Glance],
    surface: Surface,
    sort: Sort,
    interval_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Show what ``look`` returns until ``q`` is pressed.

    Args:
        look: Asks the control server.
        surface: The terminal.
        sort: By what rows are sorted at first.
        interval_s: Seconds from one look to the next.
        clock: Monotonic seconds.

    Raises:
        CliError: The first look failed.
    """
    found, at, trouble, reverse = look(), clock(), "", False
    due = at + interval_s
    while True:
        width, height = surface.size()
        said = f"{trouble}; shown is what was {clock() - at:.0f} s ago" if trouble else ""
        surface.draw(screen(found, width, height, sort, reverse=reverse, trouble=said, keys=True))
        key = surface.key(max(0.0, due - clock()))
        if key == "q":
            return
        if key == "s":
            orders = list(Sort)
            sort = orders[(orders.index(sort) + 1) % len(orders)]
        elif key == "r":
            reverse = not reverse
        if clock() >= due:
            try:
                found, at, trouble = look(), clock(), ""
            except CliError as error:
                trouble = error.message
            due = clock() + interval_s
