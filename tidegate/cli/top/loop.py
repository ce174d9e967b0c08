"""The loop of ``top`` and its terminal: looks, draws, and obeys keys.

Rules:

1. The first look that fails ends the command, so that a wrong address is seen. After that the last
   answer stays, with the reason and its age, and the next round tries again.
2. A key redraws what was seen; it does not ask the control server.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from tidegate.cli.top.model import Sort
from tidegate.cli.top.screen import screen
from tidegate.terminal.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tidegate.cli.top.model import Glance

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"
_REST_OF_SCREEN: Final = "\x1b[J"


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


class Terminal:
    """The terminal on stdout and stdin.

    Rules:

    1. However the block ends, the terminal is as it was before: screen, cursor and line discipline.
    2. Without a terminal on stdin there are no keys, and ``key`` only waits.
    """

    def __init__(self) -> None:
        self._keys = sys.stdin.isatty()
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        """Take the second screen and read keys as they are pressed."""
        if self._keys:
            self._before = termios.tcgetattr(sys.stdin.fileno())
            tty.setcbreak(sys.stdin.fileno())
        sys.stdout.write(_ENTER)
        sys.stdout.flush()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        if self._before is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)

    def size(self) -> tuple[int, int]:
        """Return columns and lines."""
        found = shutil.get_terminal_size()
        return found.columns, found.lines

    def draw(self, lines: Sequence[str]) -> None:
        """Show the lines instead of those before, without flicker."""
        text = "\r\n".join(f"{line}{_REST_OF_LINE}" for line in lines)
        sys.stdout.write(f"{_HOME}{text}{_REST_OF_SCREEN}")
        sys.stdout.flush()

    def key(self, wait_s: float) -> str:
        """Return the key pressed within ``wait_s`` seconds; empty = none."""
        if not self._keys:
            time.sleep(wait_s)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], wait_s)
        if not ready:
            return ""
        pressed = os.read(sys.stdin.fileno(), 64)
        return pressed[:1].decode("ascii", "replace") if pressed else "q"  # the terminal is gone
