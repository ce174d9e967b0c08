"""Requests with mistakes that clients make, for a Triton that serves the project's models.

``support.record_mistakes`` records a real server's answers to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from support.mistakes.grpc import OVER_GRPC
from support.mistakes.http import OVER_HTTP
from support.mistakes.lengths import LENGTHS

if TYPE_CHECKING:
    from support.mistakes.request import Mistake

MISTAKES: Final[tuple[Mistake, ...]] = (*OVER_HTTP, *OVER_GRPC, *LENGTHS)
"""In the order in which they are recorded."""
