"""How a command fails: one sentence on stderr and an exit code."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILED: Final = 1
"""The operation failed or was refused."""
USAGE: Final = 2
"""The command line itself was wrong."""


class CliError(Exception):
    """A failure that the caller can act on; its text says what to do next."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
