"""``--watch``: repeats a verb that reads, until Ctrl-C.

Rules:

1. On a terminal each answer replaces the one before; otherwise they follow one another.
2. The first failure ends the command, so that a wrong address is seen. A later one is printed, and
   the next round tries again: a control server may restart.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import TYPE_CHECKING, Final

from tidegate.terminal.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL_S: Final = 2.0
"""Seconds between two rounds."""
_CLEAR: Final = "\x1b[H\x1b[2J"


def repeat(verb: Callable[[], None], pause: Callable[[float], None] = time.sleep) -> None:
    """Run a verb again and again; see the module's rules.

    Args:
        verb: Reads and prints.
        pause: Waits for seconds.

    Raises:
        CliError: The first round failed.
    """
    for turn in itertools.count():
        if sys.stdout.isatty():
            sys.stdout.write(_CLEAR)
        elif turn:
            sys.stdout.write("\n")
        try:
            verb()
        except CliError as error:
            if not turn:
                raise
            print(f"tidegate: {error.message}", file=sys.stderr)
        sys.stdout.flush()
        pause(INTERVAL_S)
