"""Who may write a shared history, and how long a leader may serve. Pure.

Several control servers share one history. One of them leads; the others follow it. The *head* is
one value that names all that is stored, and is changed only by compare-and-swap.

Rules:

1. A leader holds a lease of the store. It counts the lease from before the request that was
   granted, so that it ends for the leader before it ends in the store, and serves until
   ``MARGIN_S`` before that (``Tenure``). The clock counts the time in which the machine sleeps.
2. A new leader writes its epoch into the head, one above the last, before it writes anything else.
   A swap of an earlier leader compares with an older head, so it fails: a stale leader never
   commits, whatever it believes of its lease.
3. Each change has the number after the last one. The head has the same epoch until another leads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

MARGIN_S: Final = 1.0
"""Seconds before the end of its lease at which a leader ends: more than it takes to end."""

RENEWALS: Final = 4
"""A lease is renewed after this part of its time, so that some renewals may fail."""

MAX_RECORDS: Final = 64
"""Most records that a head names besides an image."""


class HistoryMark(NamedTuple):
    """How far a history has come; of nothing by default."""

    epoch: int = 0
    number: int = 0
    """Of the last change."""

    def above(self, other: HistoryMark) -> bool:
        """Return whether ``other`` lacks something that this one has."""
        return other.epoch < self.epoch or other.number < self.number

    def plus(self, other: HistoryMark) -> HistoryMark:
        """Return the sum of both."""
        return HistoryMark(self.epoch + other.epoch, self.number + other.number)


class StoredPart(NamedTuple):
    """A value of the shared history, in chunks."""

    number: int
    """Number of the last change in it."""
    name: str
    """What tells it from others of the same number."""
    chunks: int
    size: int
    """Bytes of all chunks."""


@dataclass(frozen=True, slots=True)
class HistoryHead:
    """What a shared history contains: an image of all, and records of the changes after it."""

    epoch: int
    image: StoredPart
    records: tuple[StoredPart, ...] = ()

    @property
    def number(self) -> int:
        """Number of the last change."""
        return self.records[-1].number if self.records else self.image.number

    @property
    def mark(self) -> HistoryMark:
        """How far it has come."""
        return HistoryMark(self.epoch, self.number)

    @property
    def grown(self) -> bool:
        """Whether the records are so many, or so large, that an image should replace them."""
        bytes_ = sum(each.size for each in self.records)
        return len(self.records) >= MAX_RECORDS or bytes_ > max(self.image.size, 2**20)

    def appended(self, record: StoredPart) -> Self:
        """Return the head with one more change (rule 3).

        Raises:
            ValueError: It is not the next one.
        """
        if record.number != self.number + 1:
            raise ValueError(f"change {record.number} cannot follow {self.number}")
        return replace(self, records=(*self.records, record))

    def continues(self, other: HistoryHead) -> bool:
        """Return whether this head is ``other`` with further records, or none."""
        known = len(other.records)
        return self.image == other.image and self.records[:known] == other.records

    def dump(self) -> bytes:
        """Return it as JSON."""
        fields = {"epoch": self.epoch, "image": self.image, "records": self.records}
        return json.dumps(fields).encode()

    @classmethod
    def load(cls, text: bytes) -> Self:
        """Return the head of a JSON text.

        Raises:
            ValueError: It is none.
        """
        try:
            of = json.loads(text)
            return cls(
                of["epoch"],
                StoredPart(*of["image"]),
                tuple(StoredPart(*each) for each in of["records"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no head of a history: {error!r}") from None


def led(before: HistoryMark, image: StoredPart) -> HistoryHead:
    """Return a new leader's first head, with an image of all that it goes on from (rule 2)."""
    return HistoryHead(before.epoch + 1, image)


class Tenure:
    """How long a leader may serve; see the module's rules.

    Args:
        asked: The clock before the request that granted the lease, seconds.
        ttl_s: The lease's time, seconds.
    """

    def __init__(self, asked: float, ttl_s: float) -> None:
        self.renew_at = self.ends = 0.0
        self.renewed(asked, ttl_s)

    def renewed(self, asked: float, ttl_s: float) -> None:
        """Note a renewal that was asked for at ``asked`` and granted."""
        self.renew_at = asked + ttl_s / RENEWALS
        self.ends = asked + ttl_s - MARGIN_S

    def holds(self, now: float) -> bool:
        """Return whether the leader may serve."""
        return now < self.ends
