"""The law of retries: which attempts may be repeated on another replica. Pure.

Rules:

1. The first row of ``RETRIES`` that holds decides; the last row always holds. The table in the
   documentation is generated from these rows.
2. What no replica has read may be repeated while there are replicas left. What one has read may be
   repeated as often as the pool allows. What was begun to be answered is never repeated, with one
   exception: a 404 of a replica that lacks the model, whose body comes with its headers.
3. That exception is for requests whose model a replica had READY when the picker chose, or just
   before (``ext_proc.routing.health.placement``), and ends with the picker's list. The request
   never reached a model, so it is no read.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.blame.evidence import Ended
from ext_proc.blame.law import lacks_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.blame.evidence import Attempt

_UNAVAILABLE: Final = 503
_GRPC_UNAVAILABLE: Final = 14


class Repeat(StrEnum):
    """Whether an attempt may be repeated on another replica."""

    ALWAYS = "while there are replicas left"
    READ = "while reads are left"
    LISTED = "to the end of the list"
    DECLINED = "as often as `routing.fallbacks` says, while there are replicas left"
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
    RetryRule(
        "an answer 404 or gRPC NOT_FOUND to a request whose model another replica has READY, or had"
        " until just now: the replica lacks the model",
        lambda a: a.elsewhere and lacks_model(a),
        Repeat.LISTED,
    ),
    RetryRule("an answer had begun", lambda a: a.began, Repeat.NEVER),
    RetryRule(
        "an answer 503 or gRPC UNAVAILABLE, before its body: the replica lives and declined",
        lambda a: (
            a.ended is Ended.DONE
            and (a.status == _UNAVAILABLE or a.grpc_status == _GRPC_UNAVAILABLE)
        ),
        Repeat.DECLINED,
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
    """Return whether an attempt may be repeated on another replica, if there is one to try.

    Args:
        attempt: The attempt.
        reads_left: How many further replicas may read the request: the pool's
            ``routing.retry_read`` less the reads already repeated, 0 for a sequence.
    """
    allowed = repeat(attempt)
    return reads_left > 0 if allowed is Repeat.READ else allowed is not Repeat.NEVER
