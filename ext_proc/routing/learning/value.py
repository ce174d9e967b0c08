"""Value: off-policy evaluation, the cost of another policy estimated from the incumbent's log.

For each decision the incumbent selects one candidate, the evaluated policy would draw one from a
set ``T`` of candidates that it considers equal, and the action ``a`` was taken with known
probability ``p``. The doubly robust estimate of the evaluated policy's cost is (Dudik, Langford and
Li 2011)::

    mean of m over T  +  (1 / |T| if a in T else 0) / p * (cost - m(a))

where ``m`` is the model's prediction at the time of the decision. It is unbiased if either the
model or the probabilities are correct. The difference between the two policies' estimates is
exactly 0 if both select the same candidate.

Rules:

1. Ratios ``1 / p`` are bounded by ``MOST_RATIO``; beyond it the model has more weight.
2. The policy is judged after ``least`` decisions, with at least ``LEAST_EVIDENCE`` in which its
   choice differed from the incumbent's and was taken; without these it fails after ``PATIENCE``
   times as many decisions.
3. It is better only if the upper end of a one-sided 95 % confidence interval is below 0.
4. After each judgement the estimate starts again, because the system may have changed.
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
    """Running mean of the cost difference, evaluated policy minus incumbent; negative is better."""

    __slots__ = ("_squares", "count", "evidence", "mean")

    def __init__(self) -> None:
        self.clear()

    def __repr__(self) -> str:
        return f"<Value mean={self.mean:.4g} count={self.count} evidence={self.evidence}>"

    def clear(self) -> None:
        """Drop all decisions."""
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
            cost: Its cost.
            propensity: The probability with which ``done`` was chosen.
            done: The candidate that was chosen.
            incumbent: The candidate that the incumbent selected.
            targets: The candidates of which the evaluated policy draws one.
            predicted: The model's predictions for all of these at the time of the decision.
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
        """Upper end of the confidence interval, ``None`` before the second decision."""
        if self.count < 2:  # noqa: PLR2004 - one value has no variance
            return None
        return self.mean + Z_95 * sqrt(self._squares / (self.count - 1) / self.count)

    def judge(self, least: int) -> bool | None:
        """Return whether the policy is significantly better; ``None`` = undecided (rule 2)."""
        if self.evidence < LEAST_EVIDENCE:
            return False if self.count >= PATIENCE * least else None
        upper = self.upper
        if self.count < least or upper is None:
            return None
        return upper < 0.0
