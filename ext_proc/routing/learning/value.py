"""Value: what another policy would have cost, told from the log of the one that decided.

Per decision the incumbent chose one candidate, the candidate policy would have drawn one of some
that it holds for alike, and ``a`` was done with the known probability ``p``. The doubly robust
estimate of a policy that draws from the set ``T`` (Dudik, Langford and Li 2011)::

    mean of m over T  +  (1 / |T| if a in T else 0) / p * (cost - m(a))

where ``m`` is the model's prediction back then,

is right on average if either the model or the probabilities are. The difference of the two
estimates is exactly 0 where both would have chosen alike.

Rules:

1. Ratios ``1 / p`` are bounded by ``MOST_RATIO``; beyond it the model's word counts for more.
2. It is judged after ``least`` decisions, ``LEAST_EVIDENCE`` of which tried what it wanted and the
   incumbent did not; after ``PATIENCE`` times as many it has failed without them.
3. It is better only by the upper end of a one-sided 95 % interval.
4. A judgement that fails starts afresh: what was true before a change says nothing after it.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_RATIO: Final = 1_000.0
LEAST_EVIDENCE: Final = 30
PATIENCE: Final = 10
Z_95: Final = 1.645


class Value:
    """The running mean of the difference in cost, candidate minus incumbent; below 0 is better."""

    __slots__ = ("_squares", "count", "evidence", "mean")

    def __init__(self) -> None:
        self.clear()

    def __repr__(self) -> str:
        return f"<Value mean={self.mean:.4g} count={self.count} evidence={self.evidence}>"

    def clear(self) -> None:
        """Start afresh."""
        self.count = 0
        self.evidence = 0
        self.mean = 0.0
        self._squares = 0.0

    def add(
        self,
        *,
        cost: float,
        propensity: float,
        done: int,
        incumbent: int,
        targets: Sequence[int],
        predicted: Mapping[int, float],
    ) -> None:
        """Take one finished decision.

        Args:
            cost: What it cost.
            propensity: The probability with which ``done`` was chosen.
            done: The candidate that was chosen.
            incumbent: The one that the incumbent wanted.
            targets: Those of which the policy draws one.
            predicted: What the model had predicted for all of these.
        """
        difference = 0.0
        if incumbent not in targets:
            surprise = min(1.0 / propensity, MOST_RATIO) * (cost - predicted[done])
            wanted = sum([predicted[each] for each in targets]) / len(targets)
            difference = wanted - predicted[incumbent]
            if done in targets:
                difference += surprise / len(targets)
                self.evidence += 1
            elif done == incumbent:
                difference -= surprise
        self.count += 1
        off = difference - self.mean
        self.mean += off / self.count
        self._squares += off * (difference - self.mean)

    @property
    def upper(self) -> float | None:
        """Return the upper end of the interval, ``None`` before the second decision."""
        if self.count < 2:  # noqa: PLR2004 - one has no spread
            return None
        return self.mean + Z_95 * sqrt(self._squares / (self.count - 1) / self.count)

    def judge(self, least: int) -> bool | None:
        """Tell whether the policy is surely better; ``None`` = not decided yet (rule 2)."""
        if self.evidence < LEAST_EVIDENCE:
            return False if self.count >= PATIENCE * least else None
        upper = self.upper
        if self.count < least or upper is None:
            return None
        return upper < 0.0
