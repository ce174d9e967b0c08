"""The only error that reading a request may raise."""

from __future__ import annotations


class BadRequest(ValueError):  # noqa: N818 - named after the status that it becomes
    """The bytes cannot be a request of the expected form."""

    def __init__(self, message: str) -> None:
        """Keep ``message``: one sentence that names the place and the fix."""
        super().__init__(message)
        self.message = message
