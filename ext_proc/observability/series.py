"""Sums and histograms updated on the hot path; `counts` exposes them to Prometheus. Pure.

Rule: one thread writes and reads, so there are no locks; an update is a dictionary lookup and an
addition. A counter holds at most `MAX_SERIES` label sets; further ones count under ``other``.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.exchange import Pick
    from ext_proc.observability.traffic import TrafficCounts

MAX_SERIES: Final = 1_000
"""Maximum label sets of one metric."""
ALL: Final = ("all",)
MATCHED: Final = ("matched",)


class Series:
    """Sums by label values.

    Args:
        labels: Number of labels.
        known: Label sets that exist from the start.
    """

    __slots__ = ("_other", "values")

    def __init__(self, labels: int, known: Sequence[tuple[str, ...]] = ()) -> None:
        self._other = ("other",) * labels
        self.values: dict[tuple[str, ...], float] = dict.fromkeys(known, 0)

    def add(self, labels: tuple[str, ...], by: float = 1) -> None:
        """Add to the series of these label values."""
        values = self.values
        before = values.get(labels)
        if before is not None:
            values[labels] = before + by
        elif len(values) < MAX_SERIES:
            values[labels] = by
        else:
            values[self._other] = values.get(self._other, 0) + by


class Spread:
    """A histogram of durations per part.

    Args:
        parts: All parts.
        bounds: Upper bounds of the buckets, ascending; the last bucket is unbounded.
    """

    __slots__ = ("bounds", "counts", "sums")

    def __init__(self, parts: Sequence[str], bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = {part: [0] * (len(self.bounds) + 1) for part in parts}
        self.sums = dict.fromkeys(parts, 0.0)

    def observe(self, part: str, seconds: float) -> None:
        """Count one duration."""
        self.counts[part][bisect_left(self.bounds, seconds)] += 1
        self.sums[part] += seconds


class Picks:
    """The counters of picks.

    Args:
        picks: Picks by pool, variant and reason.
        tokens: Estimated prompt tokens, `ALL` and `MATCHED`.
        blocks: Prompt blocks, `ALL` and `MATCHED`.
        prompts: Estimated prompt tokens by endpoint.
        predicted: The part of them that the endpoint was predicted to have cached.
        traffic: Counts prompts by variant.
    """

    __slots__ = ("_blocks", "_picks", "_predicted", "_prompts", "_tokens", "_traffic")

    def __init__(
        self,
        picks: Series,
        tokens: Series,
        blocks: Series,
        prompts: Series,
        predicted: Series,
        traffic: TrafficCounts,
    ) -> None:
        self._traffic = traffic
        self._picks = picks
        self._tokens = tokens
        self._blocks = blocks
        self._prompts = prompts
        self._predicted = predicted

    def count(self, pick: Pick) -> None:
        """Count a pick."""
        decision, tokens = pick.decision, pick.prompt_tokens
        self._picks.add((decision.pool, decision.variant, decision.reason))
        if tokens is None:
            return
        matched = min(pick.matched_tokens, tokens)
        values = self._tokens.values  # these series exist from the start
        values[ALL] += tokens
        values[MATCHED] += matched
        values = self._blocks.values
        values[ALL] += pick.prompt_blocks
        values[MATCHED] += decision.matched_blocks
        self._traffic.picked(decision.pool, decision.variant, tokens, matched)
        if decision.ticket is not None:
            endpoint = (decision.ticket.endpoint.id,)
            self._prompts.add(endpoint, tokens)
            self._predicted.add(endpoint, matched)
