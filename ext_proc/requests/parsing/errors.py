"""The errors that reading a request may raise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ext_proc.routing.values.refusal import RefusalKind
    from ext_proc.routing.values.request import Features


class BadRequest(ValueError):  # noqa: N818 - named after the status that it becomes
    """The bytes cannot be a request of the expected form, or a replica refuses them."""

    def __init__(self, message: str, features: Features | None = None) -> None:
        """Keep ``message``: one sentence that names the place and the fix.

        Args:
            message: The sentence.
            features: What was read nevertheless; ``None`` = nothing.
        """
        super().__init__(message)
        self.message = message
        self.features = features


class UnsoundRequest(BadRequest):
    """A request that could harm a replica: pools that check requests refuse it."""

    def __init__(self, kind: RefusalKind, message: str) -> None:
        """Keep the reason for which it is refused."""
        super().__init__(message)
        self.kind = kind


class Malformed(BadRequest):
    """The bytes are no document or message at all, also by the rules of the replica's own parser.

    gRPC servers answer INTERNAL to a message that is none.
    """
