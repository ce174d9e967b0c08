"""The law of retries: which attempts may be repeated on another replica. Pure.

Rules:

1. The first row of ``RETRIES`` that holds decides; the last row always holds. The table in the
   documentation is generated from these rows.
2. What no replica has read may be repeated while there are replicas left. What one has read may be
   repeated as often as the pool allows. What was begun to be answered is never repeated.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.blame.evidence import Ended

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.blame.evidence import Attempt

_UNAVAILABLE: Final = 503
_GRPC_UNAVAILABLE: Final = 14


class Repeat(StrEnum):
    """Whether an attempt may be repeated on another replica."""

    ALWAYS = "while there are replicas left"
    READ = "while reads are left"
    NEVER = "never"


_OVER: Final = frozenset({Ended.LEFT, Ended.LOCAL, Ended.TIMEOUT})


class RetryRule(NamedTuple):
    """One row of the law of retries."""

    words: str
    holds: Callable[[Attempt], bool]
    repeat: Repeat


RETRIES: Final = (
    RetryRule(
        "the caller left, the proxy answered by itself, or the whole request's time is over",
        lambda a: a.ended in _OVER,
        Repeat.NEVER,
    ),
    RetryRule("an answer had begun", lambda a: a.began, Repeat.NEVER),
    RetryRule(
        "an answer 503 or gRPC UNAVAILABLE, before its body: the replica lives and declined",
        lambda a: (
            a.ended is Ended.DONE
            and (a.status == _UNAVAILABLE or a.grpc_status == _GRPC_UNAVAILABLE)
        ),
        Repeat.ALWAYS,
    ),
    RetryRule("any other answer", lambda a: a.answered or a.ended is Ended.DONE, Repeat.NEVER),
    RetryRule(
        "the replica was not sent the request",
        lambda a: a.ended is Ended.UNREACHED or a.read is False,
        Repeat.ALWAYS,
    ),
    RetryRule("the replica was sent the request and did not answer", lambda _: True, Repeat.READ),
)
"""The law of retries; the first row that holds decides."""


def repeat(attempt: Attempt) -> Repeat:
    """Return whether an attempt may be repeated on another replica."""
    return next(rule.repeat for rule in RETRIES if rule.holds(attempt))


def retry(attempt: Attempt, reads_left: int) -> bool:
    """Return whether an attempt may be repeated on another replica.

    Args:
        attempt: The attempt.
        reads_left: How many further replicas may read the request: the pool's
            ``routing.retry_read`` less the reads already repeated, 0 for a sequence.
    """
    allowed = repeat(attempt)
    return allowed is Repeat.ALWAYS or (allowed is Repeat.READ and reads_left > 0)
