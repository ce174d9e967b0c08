"""The terminal of ``top``: its second screen, its size, and keys without Enter.

Rules:

1. However the block ends, the terminal is as it was before: screen, cursor and line discipline.
2. Without a terminal on stdin there are no keys, and ``key`` only waits.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"
_REST_OF_SCREEN: Final = "\x1b[J"


class Terminal:
    """The terminal on stdout and stdin; see the module's rules."""

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
        return pressed[:1].decode("ascii", "replace") if pressed else "q"  # gone: nobody looks
