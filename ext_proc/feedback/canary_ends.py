"""What the end of a request says of its variant, for a rollout. Pure.

The law of blame (``ext_proc.blame.law``) asks whether a replica is at fault. A rollout compares two
variants that get like requests, so it asks only whether the service failed its caller:

1. An answer that is empty, broke off or never came, a server error, a refusal by the engine (429,
   RESOURCE_EXHAUSTED), a timeout and a hung replica that the request left are failures. Whether
   each replica of the variant failed alike does not matter.
2. Of a caller that left, of a limit of the proxy, of a body that could not be read, and of other
   errors that a request causes, nothing is said. A 404 is a failure where the request is for a
   model that the pool lists, without an adapter.
3. Only good answers of the first attempt have times. They begin when the request was sent to the
   replica, so waiting in the picker is not in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.blame.evidence import Ended
from ext_proc.blame.law import is_good
from tidegate_common.canary import KINDS

if TYPE_CHECKING:
    from ext_proc.canary import CanarySessions
    from ext_proc.feedback.entries import Entry

_FIRST, _NEXT, _WHOLE = KINDS
_OK: Final = 200
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_GRPC_NOT_FOUND: Final = 5
_GRPC_FAILURES: Final = frozenset({2, 4, 8, 13, 14})
"""UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE."""
_BROKEN: Final = frozenset({Ended.BROKEN, Ended.UNREACHED, Ended.TIMEOUT, Ended.TRY_TIMEOUT})
_OVERFLOW: Final = "overflow"
_NOT_OF_A_VARIANT: Final = frozenset(
    {"no-route", "no-cluster", _OVERFLOW, "rate-limited", "overloaded"}
)
"""Causes of answers of the proxy that no variant is behind."""


def has_failed(entry: Entry, *, listed: bool) -> bool | None:
    """Return whether the service failed a request; ``None`` = that is not known.

    Args:
        entry: Its final entry.
        listed: Whether it is for a model that its pool lists, without an adapter.
    """
    status, grpc_status = entry.status, entry.grpc_status
    if entry.ended is Ended.DONE and is_good(status, grpc_status):
        empty = status == _OK and grpc_status is None and not entry.answer_bytes
        return empty or (entry.usage is not None and entry.usage.output == 0)
    # Overflow is also told where an attempt failed and Envoy's budget of retries was used up.
    tried = entry.cause == _OVERFLOW and (entry.read or entry.attempts > 1)
    if tried or entry.ended in _BROKEN:
        return True
    if entry.ended is Ended.LEFT or entry.cause in _NOT_OF_A_VARIANT or entry.unreadable:
        return None
    if status >= _SERVER_ERROR or grpc_status in _GRPC_FAILURES:
        return True
    if entry.answered and status == _TOO_MANY:
        return True
    missing = status == _NOT_FOUND or grpc_status == _GRPC_NOT_FOUND
    return True if entry.answered and missing and listed else None


def times_of(entry: Entry) -> list[tuple[str, float]]:
    """Return kinds and seconds of the times of a good answer, as far as they are known."""
    first_s, first_at_s, last_at_s = entry.first_byte_s, entry.first_at_s, entry.last_at_s
    if first_s is None or entry.attempts > 1:
        return []
    times = [(_FIRST, first_s)]
    if first_at_s is not None and last_at_s is not None and last_at_s >= first_at_s:
        after_s = last_at_s - first_at_s
        output = None if entry.usage is None else entry.usage.output
        if output is not None and output > 1:
            times.append((_NEXT, after_s / (output - 1)))
        times.append((_WHOLE, first_s + after_s))
    return times


def take_end(sessions: CanarySessions, number: int, entry: Entry, now: float) -> None:
    """Tell the sessions of a pool with a rollout that a request has ended.

    Args:
        sessions: The sessions.
        number: The request's number.
        entry: Its final entry.
        now: Monotonic seconds.
    """
    opened = sessions.open.get(number)
    if opened is None:
        return
    failed = has_failed(entry, listed=opened[2])
    if failed is False and opened[3] is not None:
        cached = None if entry.usage is None else entry.usage.cached
        at = now + sessions.offset
        times = times_of(entry)
        sessions.ended(number, at, failed=False, good=True, times_s=times, cached=cached)
    else:
        sessions.ended(number, now + sessions.offset, failed=failed is True, good=False)
