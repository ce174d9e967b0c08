"""Exit codes and the error of a failed command: one sentence on stderr and a code."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILED: Final = 1
"""The operation failed or was refused."""
USAGE: Final = 2
"""The command line is invalid."""
UNREACHABLE: Final = 3
"""The control server cannot be reached or does not answer; nothing was changed."""
UNFINISHED: Final = 4
"""The time is over and the change may be in force, or come into force."""
REJECTED: Final = 5
"""Clients rejected the change."""


class CliError(Exception):
    """A failure of a command; the message says what to do next."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
