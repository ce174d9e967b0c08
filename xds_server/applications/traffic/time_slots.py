"""Counts over time in bounded memory. Pure.

Rules:

1. Time is cut into slots of ``span_s``; at most ``slots`` of them are kept, and none that is older.
2. A slot without requests is not kept, so an idle series costs nothing. Slots that are over are
   packed: a histogram then takes at most 1.5 kB, a tenth of a mapping.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.applications.traffic.request_counts import NOTHING, RequestCounts, added

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST: Final = 2**63 - 1
"""Largest count of a packed histogram; what is above is cut."""


class _Histogram(NamedTuple):
    """A packed histogram."""

    buckets: bytes
    counts: array[int]

    def unpacked(self) -> Mapping[int, int]:
        return dict(zip(self.buckets, self.counts, strict=True))


class _Packed(NamedTuple):
    """The counts of a slot that is over."""

    rest: RequestCounts
    """All but the histograms."""
    first_byte: _Histogram
    duration: _Histogram

    def unpacked(self) -> RequestCounts:
        return self.rest._replace(
            first_byte=self.first_byte.unpacked(), duration=self.duration.unpacked()
        )


def _histogram(counts: Mapping[int, int]) -> _Histogram:
    return _Histogram(bytes(counts), array("q", [min(each, MOST) for each in counts.values()]))


def _packed(sums: RequestCounts) -> _Packed:
    rest = sums._replace(first_byte=NOTHING.first_byte, duration=NOTHING.duration)
    return _Packed(rest, _histogram(sums.first_byte), _histogram(sums.duration))


class TimeSlots:
    """The counts of one series in the last ``span_s * slots`` seconds.

    Args:
        span_s: Length of a slot, seconds.
        slots: Most slots.
    """

    __slots__ = ("_newest", "_number", "_slots", "slots", "span_s")

    def __init__(self, span_s: float, slots: int) -> None:
        self.span_s = span_s
        self.slots = slots
        self._slots: dict[int, _Packed] = {}
        """Slots that are over, by number."""
        self._number = 0
        """Number of the newest slot."""
        self._newest = NOTHING

    def __len__(self) -> int:
        """Return the number of slots that are kept."""
        return len(self._slots) + (self._newest is not NOTHING)

    def add(self, sums: RequestCounts, now: float) -> None:
        """Add to the slot of ``now``, monotonic seconds, which never goes back."""
        number = int(now // self.span_s)
        if number > self._number:
            if self._newest is not NOTHING:
                self._slots[self._number] = _packed(self._newest)
            self._number, self._newest = number, NOTHING
            self.expire(now)
        self._newest = added(self._newest, sums)

    def expire(self, now: float) -> None:
        """Drop what is older than the slots that are kept."""
        first = int(now // self.span_s) - self.slots + 1
        for number in [each for each in self._slots if each < first]:
            del self._slots[number]
        if self._number < first:
            self._newest = NOTHING

    def total(self, now: float, slots: int) -> RequestCounts:
        """Return the counts of the newest slots, that of ``now`` included."""
        first = int(now // self.span_s) - slots + 1
        total = self._newest if self._number >= first else NOTHING
        for number, packed in self._slots.items():
            if number >= first:
                total = added(total, packed.unpacked())
        return total

    def points(self, now: float) -> Iterator[tuple[float, RequestCounts]]:
        """Yield the age of each slot's begin in seconds and its counts, the oldest first."""
        self.expire(now)
        for number in sorted(self._slots):
            yield now - number * self.span_s, self._slots[number].unpacked()
        if self._newest is not NOTHING:
            yield now - self._number * self.span_s, self._newest
