"""Counts of requests as values: sums, differences and the higher of two states of a counter. Pure.

``added`` and ``highest`` are associative and commutative, and ``highest`` of a value and itself is
that value. So counts of pickers may be added in any order, and a report may come twice or late.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

_K = TypeVar("_K")
_NONE: Final[Mapping[int, int]] = MappingProxyType({})
_NO_KINDS: Final[Mapping[str, int]] = MappingProxyType({})


class RequestCounts(NamedTuple):
    """Counts of the requests of one variant, or of one endpoint; no count is 0 in a mapping."""

    requests: int = 0
    failed: Mapping[str, int] = _NO_KINDS
    """Requests that did not end well, by kind."""
    first_byte: Mapping[int, int] = _NONE
    """Requests by bucket of the time to their first byte (``tidegate_common.histogram``)."""
    duration: Mapping[int, int] = _NONE
    prompt_tokens: int = 0
    cached_tokens: int = 0
    timed: int = 0
    """Requests of an endpoint that ended well."""
    timed_us: int = 0
    """Microseconds that these took in all."""
    begun: int = 0
    """Those of them whose first byte's time is known."""
    begun_us: int = 0
    """Microseconds to these first bytes in all."""

    @property
    def duration_s(self) -> float | None:
        """Mean seconds of an endpoint's requests that ended well; ``None`` = there are none."""
        return self.timed_us / self.timed / 1e6 if self.timed else None

    @property
    def first_byte_s(self) -> float | None:
        """Mean seconds to their first bytes; ``None`` = none is known."""
        return self.begun_us / self.begun / 1e6 if self.begun else None


NOTHING: Final = RequestCounts()


def added(one: RequestCounts, other: RequestCounts) -> RequestCounts:
    """Return the sum of two counts."""
    return RequestCounts(
        one.requests + other.requests,
        _plus(one.failed, other.failed),
        _plus(one.first_byte, other.first_byte),
        _plus(one.duration, other.duration),
        one.prompt_tokens + other.prompt_tokens,
        one.cached_tokens + other.cached_tokens,
        one.timed + other.timed,
        one.timed_us + other.timed_us,
        one.begun + other.begun,
        one.begun_us + other.begun_us,
    )


def highest(one: RequestCounts, other: RequestCounts) -> RequestCounts:
    """Return the later of two states of counters that never fall, count by count."""
    return RequestCounts(
        max(one.requests, other.requests),
        _max(one.failed, other.failed),
        _max(one.first_byte, other.first_byte),
        _max(one.duration, other.duration),
        max(one.prompt_tokens, other.prompt_tokens),
        max(one.cached_tokens, other.cached_tokens),
        max(one.timed, other.timed),
        max(one.timed_us, other.timed_us),
        max(one.begun, other.begun),
        max(one.begun_us, other.begun_us),
    )


def since(later: RequestCounts, before: RequestCounts) -> RequestCounts:
    """Return what was counted between two states; ``later`` is nowhere below ``before``."""
    return RequestCounts(
        later.requests - before.requests,
        _minus(later.failed, before.failed),
        _minus(later.first_byte, before.first_byte),
        _minus(later.duration, before.duration),
        later.prompt_tokens - before.prompt_tokens,
        later.cached_tokens - before.cached_tokens,
        later.timed - before.timed,
        later.timed_us - before.timed_us,
        later.begun - before.begun,
        later.begun_us - before.begun_us,
    )


def _plus(one: Mapping[_K, int], other: Mapping[_K, int]) -> Mapping[_K, int]:
    if not one or not other:
        return one or other
    made = dict(one)
    for key, count in other.items():
        made[key] = made.get(key, 0) + count
    return made


def _max(one: Mapping[_K, int], other: Mapping[_K, int]) -> Mapping[_K, int]:
    made = dict(one)
    for key, count in other.items():
        made[key] = max(made.get(key, 0), count)
    return made


def _minus(later: Mapping[_K, int], before: Mapping[_K, int]) -> Mapping[_K, int]:
    return {key: left for key, count in later.items() if (left := count - before.get(key, 0)) > 0}
